package queue

import (
	"testing"

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
		"one":  {[]Ref{{7, token(1, 0)}}, []*batchRuns{{batchKey{1}, []byte("1"), []int64{7}, 7}}},
		"out of order, with gaps": {
			[]Ref{{7, token(1, 4)}, {8, token(1, 1)}},
			[]*batchRuns{{batchKey{1}, []byte("01001"), []int64{0, 8, 0, 0, 7}, 7 ^ 8}},
		},
		"alternating batches": {
			[]Ref{{1, token(1, 0)}, {2, token(2, 1)}, {3, token(1, 2)}, {4, token(2, 0)}},
			[]*batchRuns{
				{batchKey{1}, []byte("101"), []int64{1, 0, 3}, 1 ^ 3},
				{batchKey{2}, []byte("11"), []int64{4, 2}, 2 ^ 4},
			},
		},
		"named twice": {
			[]Ref{{7, token(1, 0)}, {7, token(1, 0)}, {8, token(1, 0)}},
			[]*batchRuns{{batchKey{1}, []byte("1"), []int64{7}, 7}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, byBatch(tc.refs), cmp.AllowUnexported(batchRuns{})); diff != "" {
				t.Errorf("batches (-want +got):\n%s", diff)
			}
		})
	}
	key, slot := splitToken(token(1, 999))
	if slot != 999 || joinToken(key, slot) != token(1, 999) {
		t.Errorf("%s is split into %x and %d, and joined to %s", token(1, 999), key, slot, joinToken(key, slot))
	}
}
