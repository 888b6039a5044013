package history

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
)

func TestReadJournal(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	logger.Info("worker started")
	LogBegan(logger, 7, run1)
	log.WriteString("goroutine 1 [running]:\n")
	LogCancelled(logger, 7, run1, errors.New("lease lost"))
	logger.Debug("job ended", "outcome", "refused", "job", 7, "token", run1.String())
	LogTold(logger, Told{ID: 8, Token: run3, Outcome: "refused"})
	logger.Debug("job ended", "outcome", "succeeded", "job", 8, "token", run2.String())
	whole := log.String()
	cutOff := whole[:strings.LastIndex(whole, `"token"`)] // by the worker's death

	got, err := ReadJournal(strings.NewReader(cutOff))
	if err != nil {
		t.Fatal(err)
	}
	want := Journal{
		Told: []Told{{ID: 7, Token: run1, Outcome: "refused"}, {ID: 8, Token: run3, Outcome: "refused"}}, Began: []Began{{ID: 7, Token: run1}},
		Cancelled: map[uuid.UUID]string{run1: "lease lost"},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Told{}, "At"), cmpopts.IgnoreFields(Began{}, "At")); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
	for _, told := range got.Told {
		if told.At.IsZero() {
			t.Error("the time of an answer is missing")
		}
	}
	if len(got.Began) == 1 && got.Began[0].At.IsZero() {
		t.Error("the time of the handler's start is missing")
	}
}
