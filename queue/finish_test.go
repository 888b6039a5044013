package queue

import "testing"

func TestCleanText(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"plain":     {"it's fine: ü\n", "it's fine: ü\n"},
		"nul":       {"a\x00b", "a\uFFFDb"},
		"bad utf-8": {"a\xff\xfeb", "a\uFFFDb"},
		"empty":     {"", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := cleanText(tc.text); got != tc.want {
				t.Errorf("cleanText(%q) = %q, want %q", tc.text, got, tc.want)
			}
		})
	}
}
