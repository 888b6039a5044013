package controllers

import (
	"errors"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// R2: a reaper that never gets anything done is no secret.
func TestReaperWatch(t *testing.T) {
	type look struct {
		at, began, succeeded time.Duration // of the start; 0 is never
		want                 string        // "" for no error
	}
	cases := map[string]struct {
		suspend, saidSo bool
		looks           []look
	}{
		"never run yet":          {looks: []look{{at: time.Hour}}},
		"healthy, every minute":  {looks: []look{{62 * time.Second, 60 * time.Second, 0, ""}, {time.Hour, 60 * time.Second, 63 * time.Second, ""}}},
		"one a day, at its time": {looks: []look{{48*time.Hour + time.Second, 48 * time.Hour, 24 * time.Hour, ""}}},
		"an image that cannot be pulled": {looks: []look{
			{time.Minute, time.Minute, 0, ""}, {6 * time.Minute, 6 * time.Minute, 0, ""}, {8 * time.Minute, 6 * time.Minute, 0, "none ever has"},
			{9 * time.Minute, 6 * time.Minute, 9 * time.Minute, ""},
		}},
		"it worked until today": {looks: []look{
			{25 * time.Hour, 25 * time.Hour, 24 * time.Hour, ""}, {26 * time.Hour, 26 * time.Hour, 24 * time.Hour, "the last one did at 2026-03-02T12:00:00Z"},
		}},
		"another operator has said so": {saidSo: true, looks: []look{{time.Minute, time.Minute, 0, "none ever has"}, {2 * time.Minute, time.Minute, 2 * time.Minute, ""}}},
		"suspended":                    {suspend: true, looks: []look{{time.Second, 0, 0, "is suspended"}}},
	}
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newReaperWatch()
			for _, l := range tc.looks {
				cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "app-reaper"}, Spec: batchv1.CronJobSpec{Suspend: &tc.suspend}}
				if l.began > 0 {
					cron.Status.LastScheduleTime = &metav1.Time{Time: start.Add(l.began)}
				}
				if l.succeeded > 0 {
					cron.Status.LastSuccessfulTime = &metav1.Time{Time: start.Add(l.succeeded)}
				}
				err := w.judge(cron, tc.saidSo, start.Add(l.at))
				var failing *reaperFailing
				if l.want == "" && err != nil || l.want != "" && (!errors.As(err, &failing) || !strings.Contains(err.Error(), l.want)) {
					t.Errorf("after %s: %v, want %q", l.at, err, l.want)
				}
			}
		})
	}
}
