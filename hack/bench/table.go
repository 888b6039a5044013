package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// table is a table in Markdown whose columns are aligned, for those who read it as it is.
type table struct {
	rows [][]string
}

func newTable(heads ...string) *table { return &table{rows: [][]string{heads}} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) write(w io.Writer) {
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for n, row := range t.rows {
		var line strings.Builder
		for i, width := range widths {
			cell := ""
			if i < len(row) {
				cell = row[i]
			}
			pad := strings.Repeat(" ", width-utf8.RuneCountInString(cell))
			if i == 0 {
				line.WriteString("| " + cell + pad + " ")
			} else {
				line.WriteString("| " + pad + cell + " ")
			}
		}
		fmt.Fprintln(w, line.String()+"|")
		if n == 0 {
			line.Reset()
			for i, width := range widths {
				if i == 0 {
					line.WriteString("|" + strings.Repeat("-", width+2))
				} else {
					line.WriteString("|" + strings.Repeat("-", width+1) + ":")
				}
			}
			fmt.Fprintln(w, line.String()+"|")
		}
	}
	fmt.Fprintln(w)
}

// count writes a number with commas between the thousands.
func count(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for at := len(digits) - 3; at > 0 && digits[at-1] != '-'; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// rate writes jobs per second.
func rate(perSecond float64) string {
	if perSecond < 10 {
		return fmt.Sprintf("%.1f", perSecond)
	}
	return count(int64(math.Round(perSecond)))
}

// ratio writes a as a multiple of b.
func ratio(a, b float64) string {
	if b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a/b)
}

// millis writes microseconds as milliseconds.
func millis(micros float64) string { return fmt.Sprintf("%.1f ms", micros/1000) }

// median of no values is 0.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// percentile is the smallest value that p percent of the values do not exceed; of no
// values it is 0.
func percentile(values []int64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := int(math.Ceil(p/100*float64(len(sorted)))) - 1
	return float64(sorted[max(at, 0)])
}
