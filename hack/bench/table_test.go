package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 9}, 3}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
}

func TestPercentile(t *testing.T) {
	var values []int64
	for n := int64(100); n > 0; n-- {
		values = append(values, n)
	}
	for p, want := range map[float64]float64{0: 1, 50: 50, 99: 99, 100: 100} {
		if got := percentile(values, p); got != want {
			t.Errorf("percentile %v is %v, want %v", p, got, want)
		}
	}
	if got := percentile(nil, 50); got != 0 {
		t.Errorf("percentile of nothing is %v, want 0", got)
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", -100: "-100"} {
		if got := count(n); got != want {
			t.Errorf("count of %d is %q, want %q", n, got, want)
		}
	}
}

func TestTableIsAligned(t *testing.T) {
	table := newTable("what", "× ours")
	table.add("ours", "1.00")
	table.add("failed")
	var out strings.Builder
	table.write(&out)
	want := "| what   | × ours |\n|--------|-------:|\n| ours   |   1.00 |\n| failed |        |\n\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestPayloadHasItsSize(t *testing.T) {
	for _, size := range []int{64, 1024} {
		text, err := json.Marshal(Payload{At: time.Now().UnixMicro(), Pad: padding(size)})
		if err != nil || len(text) != size {
			t.Errorf("the payload has %d bytes, want %d (%v)", len(text), size, err)
		}
	}
}

func TestEveryContenderHasAState(t *testing.T) {
	for _, c := range drainContenders {
		if states[c.program].live == "" || states[c.program].finished == "" {
			t.Errorf("%s: nothing says in SQL how far it is", c.name)
		}
	}
}
