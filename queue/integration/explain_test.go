package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// touched is how many shared buffers a statement touches, with all that its functions
// do.
func touched(ctx context.Context, db queue.DB, sql string, args ...any) (int, error) {
	var raw []byte
	if err := db.QueryRow(ctx, `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+sql, args...).Scan(&raw); err != nil {
		return 0, err
	}
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(raw, &plans); err != nil {
		return 0, err
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read, nil
}

// typical is the median of a few measurements.
func typical(n int, measure func() int) int {
	all := make([]int, n)
	for i := range all {
		all[i] = measure()
	}
	slices.Sort(all)
	return all[n/2]
}

// session is a connection with the plans that it has made so far, and two workers of
// "q".
type session struct {
	ctx    context.Context
	conn   *pgx.Conn
	worker string
	other  string
	logged []string // what the server said
}

func newSession(e *env) *session {
	GinkgoHelper()
	s := &session{ctx: e.ctx, worker: uuid.NewString(), other: uuid.NewString()}
	cfg, err := pgx.ParseConfig(e.db.URL)
	Expect(err).NotTo(HaveOccurred())
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { s.logged = append(s.logged, n.Message) }
	s.conn, err = pgx.ConnectConfig(e.ctx, cfg)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { _ = s.conn.Close(e.ctx) })
	return s
}

func (s *session) exec(sql string, args ...any) {
	GinkgoHelper()
	_, err := s.conn.Exec(s.ctx, sql, args...)
	Expect(err).NotTo(HaveOccurred(), sql)
}

func column[T any](s *session, sql string) []T {
	GinkgoHelper()
	rows, err := s.conn.Query(s.ctx, sql)
	Expect(err).NotTo(HaveOccurred(), sql)
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	Expect(err).NotTo(HaveOccurred(), sql)
	return values
}

// claim takes n jobs of "q" for the worker, into a row each or sharing one, and returns
// the ids and tokens.
func (s *session) claim(worker string, n int, shared bool) (ids []int64, tokens []string) {
	GinkgoHelper()
	var alone []string
	if shared {
		alone = []string{}
	}
	rows, err := s.conn.Query(s.ctx, `SELECT id, token::text FROM jobqueue.claim('q', $1, $2, p_alone => $3)`, worker, n, alone)
	Expect(err).NotTo(HaveOccurred())
	var id int64
	var token string
	_, err = pgx.ForEachRow(rows, []any{&id, &token}, func() error {
		ids, tokens = append(ids, id), append(tokens, token)
		return nil
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(ids).To(HaveLen(n))
	return ids, tokens
}

// buffers makes the call once and returns what it touched. change, if not empty, is
// run just before, and undone with the call.
func (s *session) buffers(c call, change string) (n int, err error) {
	GinkgoHelper()
	s.exec(`BEGIN`)
	var args []any
	if c.prepare != nil {
		args = c.prepare(s)
	}
	if change != "" {
		s.exec(change)
	}
	s.logged = nil
	n, err = touched(s.ctx, s.conn, c.sql, args...)
	if c.kept && change == "" && err == nil {
		s.exec(`COMMIT`)
	} else {
		s.exec(`ROLLBACK`)
	}
	return n, err
}

// typical is the median of what the call touches, once its plans are made.
func (s *session) typical(c call) int {
	GinkgoHelper()
	measure := func() int {
		n, err := s.buffers(c, "")
		Expect(err).NotTo(HaveOccurred(), c.String())
		return n
	}
	measure()
	return typical(3, measure)
}

var hits = regexp.MustCompile(`Buffers: shared hit=(\d+)`)

// explain makes the call with the plans of all statements within it logged, and returns
// what it touched.
func (s *session) explain(c call) (int, error) {
	GinkgoHelper()
	if _, err := s.conn.Exec(s.ctx, `LOAD 'auto_explain'`); err != nil {
		return 0, err
	}
	return s.buffers(c, `SET LOCAL auto_explain.log_min_duration = 0; SET LOCAL auto_explain.log_analyze = on;
		SET LOCAL auto_explain.log_timing = off; SET LOCAL auto_explain.log_buffers = on;
		SET LOCAL auto_explain.log_nested_statements = on; SET LOCAL client_min_messages = log`)
}

var (
	produced = regexp.MustCompile(`actual rows=([0-9.]+) loops=(\d+)`)
	removed  = regexp.MustCompile(`Rows Removed by [^:]+: (\d+)`)
)

// rows is how many rows the nodes of all plans within the call met: what they passed on
// and what they filtered out. Unlike buffers, it shows work in memory.
func (s *session) rows(c call) int {
	GinkgoHelper()
	_, err := s.explain(c)
	Expect(err).NotTo(HaveOccurred(), c.String())
	var total, loops float64
	for _, line := range strings.Split(strings.Join(s.logged, "\n"), "\n") {
		if m := produced.FindStringSubmatch(line); m != nil {
			n, err := strconv.ParseFloat(m[1], 64)
			Expect(err).NotTo(HaveOccurred(), line)
			loops, err = strconv.ParseFloat(m[2], 64)
			Expect(err).NotTo(HaveOccurred(), line)
			total += n * loops
		} else if m := removed.FindStringSubmatch(line); m != nil {
			n, err := strconv.ParseFloat(m[1], 64)
			Expect(err).NotTo(HaveOccurred(), line)
			total += n * loops
		}
	}
	return int(total)
}

// plans are those of the statements within the call that touch much of what it does.
func (s *session) plans(c call) string {
	GinkgoHelper()
	n, err := s.explain(c)
	if err != nil {
		return fmt.Sprintf("no plans: %v", err)
	}
	var large []string
	for _, plan := range s.logged {
		if m := hits.FindStringSubmatch(plan); m != nil {
			if hit, _ := strconv.Atoi(m[1]); hit > n/5 {
				large = append(large, plan)
			}
		}
	}
	return strings.Join(large, "\n")
}
