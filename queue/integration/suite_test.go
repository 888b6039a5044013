package integration_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestMigrateSmoke(t *testing.T) {
	db := pgtest.Database(t)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	c, _ := queue.New("")
	res, err := c.Migrate(ctx, conn)
	t.Log(res, err)
}
