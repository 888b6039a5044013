package worker

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKindsShareRowsOnceProven(t *testing.T) {
	cases := map[string]struct {
		runs  int
		inTx  bool
		alone bool
	}{
		"new":                                {alone: true},
		"not yet proven":                     {runs: provenRuns - 1, alone: true},
		"proven":                             {runs: provenRuns},
		"long proven":                        {runs: 10 * provenRuns},
		"proven, then finished in its own":   {runs: 10 * provenRuns, inTx: true, alone: true},
		"finished in its own from the start": {inTx: true, alone: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			reg := &registration{}
			for range tc.runs {
				reg.sharing.returned()
			}
			if tc.inTx {
				reg.sharing.finishedInTx()
				reg.sharing.returned()
			}
			e := &engine{kinds: []string{"k"}, handlers: map[string]*registration{"k": reg}}
			want := []string{}
			if tc.alone {
				want = append(want, "k")
			}
			if diff := cmp.Diff(want, e.alone()); diff != "" {
				t.Errorf("alone (-want +got):\n%s", diff)
			}
		})
	}
}
