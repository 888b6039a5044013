package queue

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Listen waits for the notifications that wake idle workers and calls wake with
// the name of the queue each is for, until ctx is done or the connection fails;
// it returns that error, never nil.
//
// It takes the whole connection: give it one of its own, straight to PostgreSQL
// and not through a transaction-mode pooler, and close it afterwards. wake is
// called on the same goroutine and must return at once: a listener that does
// not keep up holds back cleaning of the server's notification queue. First
// after LISTEN has taken effect, wake is called with "" to say that anything may
// have been missed before, so look.
//
// A notification only says that there may be something to claim. One may be
// missed, so poll as well, if more slowly.
func (c *Client) Listen(ctx context.Context, conn *pgx.Conn, wake func(queue string)) error {
	if err := c.Subscribe(ctx, conn); err != nil {
		return err
	}
	wake("")
	return c.Follow(ctx, conn, wake)
}

// Subscribe has the connection receive notifications from now on. With Follow it does what
// Listen does, for those who want to use the connection for other calls in between.
func (c *Client) Subscribe(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "LISTEN "+c.quoted, pgx.QueryExecModeSimpleProtocol)
	return wrap("listen", err)
}

// Follow calls wake, as Listen does, with what a subscribed connection has received and
// receives, until ctx is done or the connection fails; it returns that error, never nil. When
// ctx is done, the connection is whole and still subscribed. Follow on soon: what is received
// meanwhile waits, and holds back cleaning of the server's notification queue.
func (c *Client) Follow(ctx context.Context, conn *pgx.Conn, wake func(queue string)) error {
	for {
		n, err := conn.WaitForNotification(ctx)
		if n != nil && n.Channel == c.schema {
			wake(n.Payload)
		}
		if err != nil {
			return wrap("listen", err)
		}
	}
}
