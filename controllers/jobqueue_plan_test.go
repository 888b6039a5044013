package controllers

import (
	"testing"

	"github.com/jobqueue-dev/jobqueue-operator/controllers/budget"
)

func TestHolders(t *testing.T) {
	of := func(name string, connections int32) budget.Grant {
		return budget.Grant{Name: name, Connections: connections}
	}
	cases := map[string]struct {
		grants []budget.Grant
		want   string
	}{
		"alone":           {grants: []budget.Grant{of("emails", 3)}},
		"others get none": {grants: []budget.Grant{of("emails", 3), of("idle", 0)}},
		"the largest first": {
			grants: []budget.Grant{of("a", 3), of("b", 6), of("emails", 0), of("idle", 0)},
			want:   "; it grants 6 to b, 3 to a",
		},
		"many": {
			grants: []budget.Grant{of("a", 3), of("b", 3), of("c", 3), of("d", 3), of("e", 9), of("emails", 0)},
			want:   "; it grants 9 to e, 3 to a, 3 to b and some to 2 more",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := holders(tc.grants, "emails"); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
