package queue

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// What PostgreSQL cannot be sent is refused before it is asked, by the argument's name.
func TestArgumentsThatCannotBeSent(t *testing.T) {
	c, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	const bad = "a\xff"
	over := math.MaxInt32 + 1
	cases := map[string]struct {
		call func() error // there is no database: it must not be asked
		want string
	}{
		"claim's queue":   {func() error { _, err := c.Claim(ctx, nil, ClaimRequest{Queue: bad}); return err }, `Queue is "a\xff"`},
		"claim's pod":     {func() error { _, err := c.Claim(ctx, nil, ClaimRequest{Pod: "\x00"}); return err }, `Pod is "\x00"`},
		"claim's kinds":   {func() error { _, err := c.Claim(ctx, nil, ClaimRequest{Kinds: []string{"k", bad}}); return err }, `Kinds is "a\xff"`},
		"claim's alone":   {func() error { _, err := c.Claim(ctx, nil, ClaimRequest{Alone: []string{bad}}); return err }, `Alone is "a\xff"`},
		"claim's limit":   {func() error { _, err := c.Claim(ctx, nil, ClaimRequest{Limit: over}); return err }, "limit is 2147483648; allowed: 1 to 10000"},
		"enqueue's queue": {func() error { _, err := c.Enqueue(ctx, nil, bad, NewJob{Kind: "k"}); return err }, `queue is "a\xff"`},
		"heartbeat":       {func() error { _, err := c.Heartbeat(ctx, nil, uuid.New(), bad, nil); return err }, `queue is "a\xff"`},
		"reap's kinds":    {func() error { _, err := c.Reap(ctx, nil, ReapRequest{Kinds: []string{bad}}); return err }, `Kinds is "a\xff"`},
		"reap's limit":    {func() error { _, err := c.Reap(ctx, nil, ReapRequest{Limit: over}); return err }, "allowed: 1 to 100000"},
		"owner":           {func() error { return c.SetPolicy(ctx, nil, "q", Policy{Owner: bad}) }, `Owner is "a\xff"`},
		"dead letters":    {func() error { _, err := c.ListDead(ctx, nil, "q", over, 0); return err }, "limit is 2147483648"},
		"requeue":         {func() error { _, err := c.Requeue(ctx, nil, bad, []int64{1}); return err }, `queue is "a\xff"`},
		"requeue a kind":  {func() error { _, err := c.RequeueKind(ctx, nil, "q", bad, 1); return err }, `kind is "a\xff"`},
		"purge":           {func() error { _, err := c.PurgeDead(ctx, nil, "q", 0, over); return err }, "limit is 2147483648"},
		"list":            {func() error { _, err := c.List(ctx, nil, ListRequest{Kind: bad}); return err }, `Kind is "a\xff"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := tc.call()
			if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want ErrInvalidArgument with %q", err, tc.want)
			}
		})
	}
}
