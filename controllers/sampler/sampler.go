package sampler

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/budget"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/scaling"
	"github.com/jobqueue-dev/jobqueue-operator/queue"
)

// minGap is the least time between two tries, however often it is woken.
const minGap = 500 * time.Millisecond

// sampler looks after one database. Everything but state, wishes and the channels
// belongs to the goroutine of run.
type sampler struct {
	hub    *Hub
	key    Key
	config Config
	log    logr.Logger
	conf   *pgx.ConnConfig
	client *queue.Client

	state  atomic.Pointer[State]
	wishes *wishes
	wake   chan struct{}
	usable chan struct{} // a token when a sample was read: the listener may try
	cancel context.CancelFunc
	prior  *sampler // whose measurements are taken over when run begins
	done   chan struct{}
	// launched is false for a sampler that was replaced before the Hub was started.
	launched bool

	conn      *pgx.Conn
	schemaOK  bool
	version   int
	histories map[string]*scaling.History
	others    budget.Smoother
	failures  int
}

func newSampler(h *Hub, key Key, config Config) (*sampler, error) {
	conf, err := ParseURL(config.URL)
	if err != nil {
		return nil, err
	}
	client, err := queue.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	s := &sampler{
		hub: h, key: key, config: config, conf: conf, client: client,
		log:    h.log.WithValues("queueDatabase", key.String()),
		wishes: newWishes(), wake: make(chan struct{}, 1), usable: make(chan struct{}, 1), done: make(chan struct{}),
		cancel: func() {}, histories: map[string]*scaling.History{},
	}
	s.state.Store(&State{Interval: config.Interval})
	return s, nil
}

// inherit takes over from a sampler that has been told to stop. What it last
// published stays visible until the first own try has ended.
func (s *sampler) inherit(old *sampler) {
	state := *old.state.Load()
	state.Interval = s.config.Interval
	s.state.Store(&state)
	s.wishes = old.wishes
	s.prior = old
}

func (s *sampler) stop() { s.cancel() }

// poke wakes the sampler; it never blocks.
func (s *sampler) poke() { token(s.wake) }

func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run tries until ctx is done.
func (s *sampler) run(ctx context.Context) {
	defer close(s.done)
	s.takeOver()
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		s.listen(ctx)
	}()
	for ctx.Err() == nil {
		s.try(ctx)
		s.wait(ctx)
	}
	s.drop()
	<-listening
}

// takeOver waits for the former sampler to end, so that no more than the operator's
// two connections are held, and keeps what it measured.
func (s *sampler) takeOver() {
	if s.prior == nil {
		return
	}
	if s.prior.launched {
		<-s.prior.done
		s.histories, s.others = s.prior.histories, s.prior.others
	}
	s.prior = nil
}

// try makes one sample and publishes what came of it.
func (s *sampler) try(ctx context.Context) {
	began := time.Now()
	sample, err := s.round(ctx)
	if ctx.Err() != nil {
		return // told to stop: not a finding about the database
	}
	next := *s.state.Load()
	next.Attempted, next.Problem, next.SchemaVersion = true, nil, s.version
	if err != nil {
		s.failures++
		s.drop()
		p := problemOf(err, s.conf)
		next.Problem = &p
		s.log.V(1).Info("sample failed", "reason", p.Reason, "message", p.Message, "failures", s.failures)
	} else {
		s.failures = 0
		s.record(sample)
		next.see(sample, s.hub.now())
		next.Others = s.others.Add(int32(min(sample.OtherConnections, 1<<30)))
		next.Settled = s.others.Settled()
		next.Rates = s.rates()
		token(s.usable)
	}
	next.Policies, next.released = s.wishes.outcomes()
	s.state.Store(&next)
	s.hub.observer.Sampled(s.key, time.Since(began), next.Problem)
	s.hub.Announce(s.key)
}

// round does all there is to do with the database at one time.
func (s *sampler) round(ctx context.Context) (queue.Sample, error) {
	if err := s.ensureConnected(ctx); err != nil {
		return queue.Sample{}, err
	}
	if err := s.ensureSchema(ctx); err != nil {
		return queue.Sample{}, err
	}
	if err := s.writePolicies(ctx); err != nil {
		return queue.Sample{}, err
	}
	if err := s.writeReleases(ctx); err != nil {
		return queue.Sample{}, err
	}
	return s.read(ctx)
}

func (s *sampler) ensureConnected(ctx context.Context) error {
	if s.conn != nil && !s.conn.IsClosed() {
		return nil
	}
	conn, err := connect(ctx, s.conf)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	s.conn, s.schemaOK = conn, false
	return nil
}

// drop gives the connection up; the next try makes a new one.
func (s *sampler) drop() {
	if s.conn != nil {
		disconnect(s.conn)
	}
	s.conn, s.schemaOK = nil, false
}

// ensureSchema looks at the schema's version once per connection, and migrates
// if it may.
func (s *sampler) ensureSchema(ctx context.Context) error {
	if s.schemaOK {
		return nil
	}
	err := bounded(ctx, s.conn, func(ctx context.Context, tx pgx.Tx) (err error) {
		s.version, err = s.client.Version(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}
	if s.version < queue.LatestVersion && s.config.Migrate {
		if err := s.migrate(ctx); err != nil {
			return err
		}
	}
	if err := s.judgeVersion(); err != nil {
		return err
	}
	s.schemaOK = true
	return nil
}

func (s *sampler) migrate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	result, err := s.client.Migrate(ctx, s.conn)
	if err != nil {
		if isConnectionProblem(err, s.conn) {
			return err
		}
		return &schemaError{reason: v1alpha1.ReasonMigrationFailed,
			message: "the migration failed: " + scrub(messageOf(err), s.conf.Password)}
	}
	s.version = result.To
	s.log.Info("schema migrated", "from", result.From, "to", result.To)
	return nil
}

// judgeVersion says what is wrong with the version found, if anything.
func (s *sampler) judgeVersion() error {
	switch {
	case s.version == 0:
		return &schemaError{v1alpha1.ReasonSchemaMissing, fmt.Sprintf(
			"schema %q is missing or empty; run `jobqueue migrate`, or set migrations: Automatic", s.client.Schema())}
	case s.version < queue.LatestVersion:
		return &schemaError{v1alpha1.ReasonSchemaOutdated, fmt.Sprintf(
			"schema %q has version %d and needs %d; run `jobqueue migrate`, or set migrations: Automatic", s.client.Schema(), s.version, queue.LatestVersion)}
	case s.version > queue.LatestVersion:
		return &schemaError{v1alpha1.ReasonSchemaTooNew, fmt.Sprintf(
			"schema %q has version %d, this operator knows up to %d; use a newer operator", s.client.Schema(), s.version, queue.LatestVersion)}
	}
	return nil
}

// writePolicies writes the policies asked for. One that is refused is the matter
// of its queue; only a broken connection is one of the database.
func (s *sampler) writePolicies(ctx context.Context) error {
	for name, policy := range s.wishes.unwritten() {
		err := s.setPolicy(ctx, name, policy)
		if errors.Is(err, queue.ErrPolicyStale) {
			// The same owner, and an older generation: the JobQueue was deleted while
			// the database was away, and made again.
			if err = s.releaseOwner(ctx, release{name, policy.Owner}); err == nil {
				err = s.setPolicy(ctx, name, policy)
			}
		}
		if err != nil && isConnectionProblem(err, s.conn) {
			return err
		}
		s.wishes.settle(name, policy, policyProblem(err, s.conf))
	}
	return nil
}

func policyProblem(err error, conf *pgx.ConnConfig) *Problem {
	if err == nil {
		return nil
	}
	p := problemOf(err, conf)
	if p.Reason == v1alpha1.ReasonConnectionFailed {
		p.Reason = v1alpha1.ReasonPolicyRefused
	}
	return &p
}

func (s *sampler) setPolicy(ctx context.Context, name string, p queue.Policy) error {
	return bounded(ctx, s.conn, func(ctx context.Context, tx pgx.Tx) error {
		return s.client.SetPolicy(ctx, tx, name, p)
	})
}

func (s *sampler) releaseOwner(ctx context.Context, r release) error {
	return bounded(ctx, s.conn, func(ctx context.Context, tx pgx.Tx) error {
		return s.client.ReleaseOwner(ctx, tx, r.queue, r.owner)
	})
}

// writeReleases releases owners. One that cannot be, as while somebody's transaction has
// the queue's row, is tried again with the next sample, which it does not hold up.
func (s *sampler) writeReleases(ctx context.Context) error {
	for _, r := range s.wishes.unreleased() {
		err := s.releaseOwner(ctx, r)
		switch {
		case err == nil:
			s.wishes.settleRelease(r)
		case isConnectionProblem(err, s.conn):
			return err
		default:
			s.log.Info("an owner is not released yet", "queue", r.queue, "owner", r.owner, "error", scrub(messageOf(err), s.conf.Password))
		}
	}
	return nil
}

// read takes the sample.
func (s *sampler) read(ctx context.Context) (queue.Sample, error) {
	var sample queue.Sample
	err := bounded(ctx, s.conn, func(ctx context.Context, tx pgx.Tx) (err error) {
		sample, err = s.client.Sample(ctx, tx)
		return err
	})
	return sample, err
}

// record adds a sample to the histories and drops those of queues that are gone.
func (s *sampler) record(sample queue.Sample) {
	s.wishes.compare(sample)
	for name := range s.histories {
		if _, ok := sample.Queues[name]; !ok {
			delete(s.histories, name)
		}
	}
	for name, q := range sample.Queues {
		if s.histories[name] == nil {
			s.histories[name] = &scaling.History{}
		}
		s.histories[name].Add(scaling.Point{
			At: sample.TakenAt, Pending: q.Pending, Running: q.Running, PendingCapped: q.PendingCapped,
			Claimed: q.Claimed, Succeeded: q.Succeeded, Failed: q.Failed, Lost: q.Lost,
			Discarded: q.Discarded, ExecutionMillis: q.ExecutionMillis,
		})
	}
}

func (s *sampler) rates() map[string]scaling.Rates {
	out := make(map[string]scaling.Rates, len(s.histories))
	for name, h := range s.histories {
		out[name] = h.Rates()
	}
	return out
}

// isConnectionProblem tells errors of the connection and of the server as a whole
// from those of one statement.
func isConnectionProblem(err error, conn *pgx.Conn) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || conn.IsClosed() {
		return true
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "08", "28", "53", "57", "58", "3F", "25": // connection, authorization, resources, intervention, system, schema, read-only
		return true
	}
	return errors.Is(err, queue.ErrSchemaMissing)
}
