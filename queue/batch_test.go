package queue

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

func TestByBatch(t *testing.T) {
	token := func(batch byte, slot uint16) uuid.UUID {
		return uuid.UUID{0: batch, 14: byte(slot >> 8), 15: byte(slot)}
	}
	cases := map[string]struct {
		refs []Ref
		want []*batchRuns
	}{
		"none": {},
		"one":  {[]Ref{{7, token(1, 0)}}, []*batchRuns{{key: batchKey{1}, bits: []byte("1"), ids: []int64{7}, idXor: 7}}},
		"out of order, with gaps": {
			[]Ref{{7, token(1, 4)}, {8, token(1, 1)}},
			[]*batchRuns{{key: batchKey{1}, bits: []byte("01001"), ids: []int64{0, 8, 0, 0, 7}, idXor: 7 ^ 8}},
		},
		"alternating batches": {
			[]Ref{{1, token(1, 0)}, {2, token(2, 1)}, {3, token(1, 2)}, {4, token(2, 0)}},
			[]*batchRuns{
				{key: batchKey{1}, bits: []byte("101"), ids: []int64{1, 0, 3}, idXor: 1 ^ 3},
				{key: batchKey{2}, bits: []byte("11"), ids: []int64{4, 2}, idXor: 2 ^ 4},
			},
		},
		"named twice": {
			[]Ref{{7, token(1, 0)}, {7, token(1, 0)}, {8, token(1, 0)}},
			[]*batchRuns{{key: batchKey{1}, bits: []byte("1"), ids: []int64{7}, idXor: 7}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, byBatch(tc.refs, nil), cmp.AllowUnexported(batchRuns{})); diff != "" {
				t.Errorf("batches (-want +got):\n%s", diff)
			}
		})
	}
	timed := byBatch([]Ref{{1, token(1, 0)}, {2, token(2, 1)}, {3, token(1, 2)}, {3, token(1, 2)}}, []time.Duration{1, 2, 4, 8})
	if len(timed) != 2 || timed[0].took != 1+4 || timed[1].took != 2 {
		t.Errorf("batches took %v and %v, want the sums of their runs' times, of each run once", timed[0].took, timed[1].took)
	}
	key, slot := splitToken(token(1, 999))
	if slot != 999 || joinToken(key, slot) != token(1, 999) {
		t.Errorf("%s is split into %x and %d, and joined to %s", token(1, 999), key, slot, joinToken(key, slot))
	}
}
