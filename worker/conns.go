package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

const (
	// offered is how long a heartbeat waits for the keeper to lend its connection, which it
	// does between two notifications, before it takes one from the pool.
	offered = 100 * time.Millisecond
	// A connection that was idle for longer than unsure is asked whether it is alive, for
	// no longer than asked, before it is lent: a pooler closes clients that are idle.
	unsure = time.Second
	asked  = time.Second
)

// conns shares out the pool's connections so that a heartbeat finds one: claims, results
// and the rescue, any of which may hang on a lock or on a large answer, hold all but one.
// That one is the keeper's, who lends it to heartbeats, so that handlers that use the pool
// cannot take it either. The keeper listens on it, unless the worker is not to. Of a pool
// of one connection none is kept.
type conns struct {
	pool    *pgxpool.Pool
	free    chan struct{} // a token for each connection that is not kept for heartbeats
	loans   chan loan     // taken while the keeper has nothing else to do
	lending atomic.Bool
}

// loan is a use of the keeper's connection; done takes its error.
type loan struct {
	use  func(queue.DB) error
	done chan error
}

// kept counts the connections that workers keep of each pool. Where several workers share
// one, all but one of its connections may be kept: the last is for claims and results.
var kept = struct {
	sync.Mutex
	of map[*pgxpool.Pool]int
}{of: map[*pgxpool.Pool]int{}}

// mayKeep reserves a connection to keep; false when too few would be left. What is
// reserved is given back by unkeep.
func mayKeep(pool *pgxpool.Pool) bool {
	kept.Lock()
	defer kept.Unlock()
	if kept.of[pool] >= int(pool.Config().MaxConns)-1 {
		return false
	}
	kept.of[pool]++
	return true
}

func unkeep(pool *pgxpool.Pool) {
	kept.Lock()
	defer kept.Unlock()
	if kept.of[pool]--; kept.of[pool] == 0 {
		delete(kept.of, pool)
	}
}

func newConns(pool *pgxpool.Pool) *conns {
	c := &conns{pool: pool, loans: make(chan loan)}
	c.free = make(chan struct{}, max(pool.Config().MaxConns-1, 1))
	for range cap(c.free) {
		c.free <- struct{}{}
	}
	return c
}

// errNotLent is the answer to a loan of a connection that has turned out dead.
var errNotLent = errors.New("worker: the keeper's connection is closed")

// notSentError is the failure of a statement for which there was no connection in time:
// the database has not seen it.
type notSentError struct{ err error }

func (e *notSentError) Error() string { return fmt.Sprintf("no connection: %v", e.err) }
func (e *notSentError) Unwrap() error { return e.err }

// do calls use with one of the connections that are not kept for heartbeats, once one is
// free. The connection must not be kept.
func (c *conns) do(ctx context.Context, use func(queue.DB) error) error {
	select {
	case <-c.free:
	case <-ctx.Done():
		return &notSentError{ctx.Err()}
	}
	defer func() { c.free <- struct{}{} }()
	return c.fromPool(ctx, use)
}

// with is do for a call that returns something.
func with[T any](ctx context.Context, c *conns, call func(queue.DB) (T, error)) (value T, err error) {
	err = c.do(ctx, func(db queue.DB) error {
		value, err = call(db)
		return err
	})
	return value, err
}

// keep calls use with a connection that no claim and no result can hold up.
func (c *conns) keep(ctx context.Context, use func(queue.DB) error) error {
	if c.lending.Load() {
		l := loan{use: use, done: make(chan error, 1)}
		timer := time.NewTimer(offered)
		defer timer.Stop()
		select {
		case c.loans <- l:
			if err := <-l.done; !errors.Is(err, errNotLent) {
				return err
			}
		case <-timer.C:
		case <-ctx.Done():
			return &notSentError{ctx.Err()}
		}
	}
	return c.fromPool(ctx, use)
}

func (c *conns) fromPool(ctx context.Context, use func(queue.DB) error) error {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return &notSentError{err}
	}
	defer conn.Release()
	return use(conn)
}

// hold keeps conn until ctx is done or the connection fails, and lends it to those who ask.
func (c *conns) hold(ctx context.Context, conn *pgx.Conn) error {
	c.lending.Store(true)
	defer c.lending.Store(false)
	used := time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case l := <-c.loans:
			if time.Since(used) > unsure {
				asking, cancel := context.WithTimeout(ctx, asked)
				err := conn.Ping(asking)
				cancel()
				if err != nil {
					l.done <- errNotLent
					return err
				}
			}
			l.done <- l.use(conn)
			used = time.Now()
			if conn.IsClosed() {
				return errNotLent
			}
		}
	}
}

// listen listens on conn until ctx is done or the connection fails, and lends it to those
// who ask in between. LISTEN may take patience: until it is answered, heartbeats may find no
// connection. wake is as for queue.Client.Listen.
func (c *conns) listen(ctx context.Context, client *queue.Client, conn *pgx.Conn, patience time.Duration, wake func(string)) error {
	subscribing, cancel := context.WithTimeout(ctx, patience)
	err := client.Subscribe(subscribing, conn)
	cancel()
	if err != nil {
		return err
	}
	c.lending.Store(true)
	defer c.lending.Store(false)
	wake("")
	for {
		borrower, err := c.follow(ctx, client, conn, wake)
		if borrower == nil {
			return err
		}
		if conn.IsClosed() {
			borrower.done <- errNotLent
			return err
		}
		borrower.done <- borrower.use(conn)
	}
}

// follow waits for notifications until somebody asks for the connection, who is then
// returned, or else the error that ended it.
func (c *conns) follow(ctx context.Context, client *queue.Client, conn *pgx.Conn, wake func(string)) (*loan, error) {
	waiting, interrupt := context.WithCancel(ctx)
	asked := make(chan *loan, 1)
	go func() {
		select {
		case l := <-c.loans:
			asked <- &l
		case <-waiting.Done():
			asked <- nil
		}
		interrupt()
	}()
	err := client.Follow(waiting, conn, wake)
	interrupt()
	return <-asked, err
}
