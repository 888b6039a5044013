package queue

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// checkText returns an error for text that PostgreSQL cannot be sent; whatever else is
// wrong with an argument is for the database to say.
func checkText(argument string, texts ...string) error {
	for _, text := range texts {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return fmt.Errorf("%w: %s is %q; allowed is text in UTF-8 without NUL", ErrInvalidArgument, argument, text)
		}
	}
	return nil
}

// checkLimit returns an error for a limit that PostgreSQL cannot be sent.
func checkLimit(limit, most int) error {
	if limit < math.MinInt32 || limit > math.MaxInt32 {
		return fmt.Errorf("%w: limit is %d; allowed: 1 to %d", ErrInvalidArgument, limit, most)
	}
	return nil
}
