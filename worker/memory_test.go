package worker

import "testing"

func TestMemoryLimit(t *testing.T) {
	cases := map[string]int64{
		"max\n": 0, "": 0, "0": 0, "-1": 0, "12x": 0,
		"1000\n": 900, "268435456": 241591905 - 1,
	}
	for text, want := range cases {
		if got := memoryLimit(text); got/10 != want/10 {
			t.Errorf("limit of %q is %d, want about %d", text, got, want)
		}
	}
}
