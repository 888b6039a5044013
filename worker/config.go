package worker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// Limits of the configuration, and the values taken when nothing is set.
const (
	DefaultSchema       = "jobqueue"
	DefaultSlots        = 10
	MaxSlots            = 1000
	DefaultPoolSize     = 3
	MinPoolSize         = 2
	MaxPoolSize         = 1000
	DefaultGrace        = 90 * time.Second
	MinGrace            = time.Second
	MaxGrace            = 48 * time.Hour
	DefaultHTTPAddr     = ":8080"
	DefaultPollInterval = time.Second
	DefaultPollMax      = 2 * time.Second
	minPollInterval     = 10 * time.Millisecond
	maxPollInterval     = time.Hour
	maxRecycle          = 366 * 24 * time.Hour
)

// Config says which queue a worker serves and with what. Its zero values stand
// for the defaults; only Queue (and, for [Main], DatabaseURL) must be set.
type Config struct {
	// DatabaseURL is a PostgreSQL connection string. Only [NewPool] and [Main]
	// read it. It is never logged.
	DatabaseURL string
	// Schema holds the queue's tables and functions. Default "jobqueue".
	Schema string
	// Queue is the name of the queue to serve.
	Queue string
	// Slots is how many handlers run at once, 1 to 1000. Default 10.
	Slots int
	// PoolSize is the number of all the process's connections, the listener's
	// included; at least 2. Default 3. Only [NewPool] and [Main] read it.
	PoolSize int
	// PodName and PodNamespace are shown to observers and decide nothing.
	PodName, PodNamespace string
	// Grace is the time between the request to stop and the process's end by
	// force: the pod's terminationGracePeriodSeconds. Default 90 s.
	Grace time.Duration
	// HTTPAddr is where [Main] serves /healthz, /readyz and /metrics. Default ":8080".
	HTTPAddr string
	// DisableListen makes the worker find jobs by polling alone, as it must
	// behind a pooler in transaction mode, where no notification arrives.
	DisableListen bool
	// PollInterval is the time between two claims of a worker that found nothing
	// and heard nothing; it is jittered, and grows by half with each empty claim
	// up to PollMax. Defaults 1 s and 2 s.
	PollInterval, PollMax time.Duration
	// RecycleJobs ends the process, as by a request to stop, after it has started
	// that many jobs. 0 means never.
	RecycleJobs int64
	// RecycleAge ends the process, as by a request to stop, at about that age;
	// the age is jittered by a tenth so that a fleet does not recycle at once.
	// 0 means never.
	RecycleAge time.Duration
}

// ConfigError is a setting that cannot be used.
type ConfigError struct {
	Field   string // the variable or field
	Value   string // what it holds; empty for secrets
	Allowed string // what may stand there
}

func (e *ConfigError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("%s: allowed is %s", e.Field, e.Allowed)
	}
	return fmt.Sprintf("%s is %q: allowed is %s", e.Field, e.Value, e.Allowed)
}

// Names of the environment's variables.
const (
	EnvDatabaseURL    = "JOBQUEUE_DATABASE_URL"
	EnvSchema         = "JOBQUEUE_SCHEMA"
	EnvQueue          = "JOBQUEUE_QUEUE"
	EnvSlots          = "JOBQUEUE_SLOTS"
	EnvPoolSize       = "JOBQUEUE_POOL_SIZE"
	EnvPodName        = "JOBQUEUE_POD_NAME"
	EnvPodNamespace   = "JOBQUEUE_POD_NAMESPACE"
	EnvGraceSeconds   = "JOBQUEUE_GRACE_SECONDS"
	EnvHTTPAddr       = "JOBQUEUE_HTTP_ADDR"
	EnvListen         = "JOBQUEUE_LISTEN"
	EnvPollMillis     = "JOBQUEUE_POLL_MILLISECONDS"
	EnvRecycleJobs    = "JOBQUEUE_RECYCLE_JOBS"
	EnvRecycleSeconds = "JOBQUEUE_RECYCLE_SECONDS"
	EnvLogLevel       = "JOBQUEUE_LOG_LEVEL"
)

// ConfigFromEnv reads a worker's configuration from the environment's JOBQUEUE_
// variables. It returns all that is wrong at once, each as a [*ConfigError].
func ConfigFromEnv() (Config, error) { return configFrom(os.LookupEnv) }

func configFrom(lookup func(string) (string, bool)) (Config, error) {
	r := envReader{lookup: lookup}
	cfg := Config{
		DatabaseURL:   r.text(EnvDatabaseURL, ""),
		Schema:        r.text(EnvSchema, DefaultSchema),
		Queue:         r.text(EnvQueue, ""),
		Slots:         int(r.number(EnvSlots, DefaultSlots, 1, MaxSlots)),
		PoolSize:      int(r.number(EnvPoolSize, DefaultPoolSize, MinPoolSize, MaxPoolSize)),
		PodName:       r.text(EnvPodName, ""),
		PodNamespace:  r.text(EnvPodNamespace, ""),
		Grace:         time.Duration(r.number(EnvGraceSeconds, int64(DefaultGrace/time.Second), int64(MinGrace/time.Second), int64(MaxGrace/time.Second))) * time.Second,
		HTTPAddr:      r.text(EnvHTTPAddr, DefaultHTTPAddr),
		DisableListen: !r.boolean(EnvListen, true),
		RecycleJobs:   r.number(EnvRecycleJobs, 0, 0, 1<<53),
		RecycleAge:    time.Duration(r.number(EnvRecycleSeconds, 0, 0, int64(maxRecycle/time.Second))) * time.Second,
	}
	cfg.PollInterval = time.Duration(r.number(EnvPollMillis, DefaultPollInterval.Milliseconds(),
		minPollInterval.Milliseconds(), maxPollInterval.Milliseconds())) * time.Millisecond
	cfg.PollMax = 2 * cfg.PollInterval
	if cfg.DatabaseURL == "" {
		r.refuse(EnvDatabaseURL, "", "a PostgreSQL connection string; it is not set")
	}
	if cfg.Queue == "" {
		r.refuse(EnvQueue, "", "the name of the queue to serve; it is not set")
	}
	if cfg.HTTPAddr != "" {
		if _, _, err := net.SplitHostPort(cfg.HTTPAddr); err != nil {
			r.refuse(EnvHTTPAddr, cfg.HTTPAddr, `host:port, such as ":8080"`)
		}
	}
	if err := errors.Join(r.errs...); err != nil {
		return Config{}, fmt.Errorf("worker: configuration: %w", err)
	}
	return cfg, nil
}

// withDefaults fills the zero values and refuses what is out of range.
func (c Config) withDefaults() (Config, error) {
	var r envReader
	setDefault(&c.Schema, DefaultSchema)
	setDefault(&c.Slots, DefaultSlots)
	setDefault(&c.PoolSize, DefaultPoolSize)
	setDefault(&c.Grace, DefaultGrace)
	setDefault(&c.HTTPAddr, DefaultHTTPAddr)
	setDefault(&c.PollInterval, DefaultPollInterval)
	setDefault(&c.PollMax, max(DefaultPollMax, 2*c.PollInterval))
	if c.Queue == "" {
		r.refuse("Queue", "", "the name of the queue to serve; it is not set")
	}
	r.within("Slots", int64(c.Slots), 1, MaxSlots)
	r.within("PoolSize", int64(c.PoolSize), MinPoolSize, MaxPoolSize)
	r.span("Grace", c.Grace, MinGrace, MaxGrace)
	r.span("PollInterval", c.PollInterval, minPollInterval, maxPollInterval)
	r.span("PollMax", c.PollMax, c.PollInterval, 2*maxPollInterval)
	r.within("RecycleJobs", c.RecycleJobs, 0, 1<<53)
	r.span("RecycleAge", c.RecycleAge, 0, maxRecycle)
	if err := errors.Join(r.errs...); err != nil {
		return Config{}, fmt.Errorf("worker: configuration: %w", err)
	}
	return c, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// envReader gathers the errors of many settings, so that a user mends them in
// one go.
type envReader struct {
	lookup func(string) (string, bool)
	errs   []error
}

func (r *envReader) refuse(field, value, allowed string) {
	r.errs = append(r.errs, &ConfigError{Field: field, Value: value, Allowed: allowed})
}

func (r *envReader) text(name, def string) string {
	if v, ok := r.lookup(name); ok && v != "" {
		return v
	}
	return def
}

func (r *envReader) number(name string, def, low, high int64) int64 {
	text := r.text(name, "")
	if text == "" {
		return def
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		r.refuse(name, text, fmt.Sprintf("a whole number from %d to %d", low, high))
		return def
	}
	return n
}

func (r *envReader) boolean(name string, def bool) bool {
	text := r.text(name, "")
	if text == "" {
		return def
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		r.refuse(name, text, "true or false")
		return def
	}
	return b
}

func (r *envReader) within(field string, n, low, high int64) {
	if n < low || n > high {
		r.refuse(field, strconv.FormatInt(n, 10), fmt.Sprintf("a whole number from %d to %d", low, high))
	}
}

func (r *envReader) span(field string, d, low, high time.Duration) {
	if d < low || d > high {
		r.refuse(field, d.String(), fmt.Sprintf("a duration from %s to %s", low, high))
	}
}
