// Command bench measures the queue against its rivals, on one PostgreSQL that it starts
// itself, and writes a report in Markdown to standard output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jobqueue-dev/jobqueue-operator/internal/pgtest"
)

// childCommand makes the program a contender's process.
const childCommand = "child"

// options are what the command line says.
type options struct {
	parts        []string
	contenders   *regexp.Regexp
	rounds, jobs int
	payloads     []int
	limit        time.Duration // of one drain
	rivals       string        // the folder with program.mjs
	gueSchema    string        // gue's own schema.sql

	enqueueJobs    int
	latencySeconds int
	adverseRounds  int
	future         int
	history        int
	queues         int
	held           time.Duration
	memoryJobs     int
	idleQueues     int
	idle           time.Duration
	riverWorkers   int
}

// part is a section of the report.
type part struct {
	name string
	run  func(*bench, context.Context) error
}

var parts = []part{
	{"drain", (*bench).drain},
	{"cost", (*bench).cost},
	{"ceiling", (*bench).ceiling},
	{"enqueue", (*bench).enqueue},
	{"latency", (*bench).latency},
	{"scale", (*bench).scale},
	{"adversity", (*bench).adversity},
	{"memory", (*bench).memory},
	{"idle", (*bench).idle},
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == childCommand {
		os.Exit(childMain(os.Args[2]))
	}
	if err := benchMain(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func benchMain() error {
	opts, err := parseOptions(os.Args[1:])
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	server, err := pgtest.Start(serverSettings...)
	if err != nil {
		return err
	}
	b := &bench{opts: opts, cluster: &cluster{server: server}, out: os.Stdout}
	return errors.Join(b.all(ctx), server.Stop())
}

// all runs the parts asked for. One that fails does not keep the others from running.
func (b *bench) all(ctx context.Context) error {
	if err := b.describe(ctx); err != nil {
		return err
	}
	var errs error
	for _, p := range parts {
		if !slices.Contains(b.opts.parts, p.name) {
			continue
		}
		if ctx.Err() != nil {
			return errors.Join(errs, fmt.Errorf("interrupted before %s", p.name))
		}
		logf("part %s", p.name)
		start := time.Now()
		if err := p.run(b, ctx); err != nil {
			fmt.Fprintf(b.out, "**This part failed**; standard error says why.\n\n")
			errs = errors.Join(errs, fmt.Errorf("%s: %w", p.name, err))
		}
		fmt.Fprintf(b.out, "Took %s; load average after it: %s\n\n", time.Since(start).Round(time.Second), load())
	}
	return errs
}

func parseOptions(args []string) (options, error) {
	var o options
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	partList := flags.String("parts", strings.Join(names, ","), "the `parts` to run")
	contenders := flags.String("contenders", "", "run only contenders whose name matches this regular `expression`, whatever the case; ours always runs")
	payloads := flags.String("payloads", "64,1024", "payload sizes of drain, in `bytes`")
	flags.IntVar(&o.rounds, "rounds", 5, "rounds of drain, enqueue and scale")
	flags.IntVar(&o.jobs, "jobs", 100_000, "jobs of each drain; slow contenders get fewer")
	flags.DurationVar(&o.limit, "limit", 2*time.Minute, "the longest that one drain may take")
	flags.StringVar(&o.rivals, "rivals", "hack/bench/rivals", "the `folder` of the rivals for Node.js")
	flags.StringVar(&o.gueSchema, "gue-schema", "", "gue's schema.sql, without which gue is left out")
	flags.IntVar(&o.enqueueJobs, "enqueue-jobs", 100_000, "jobs of each bulk enqueue; a fifth one by one")
	flags.IntVar(&o.latencySeconds, "latency-seconds", 20, "how long 100 jobs per second are enqueued")
	flags.IntVar(&o.adverseRounds, "adverse-rounds", 3, "rounds of adversity, whose preparation takes minutes")
	flags.IntVar(&o.future, "future", 1_000_000, "future jobs of adversity")
	flags.IntVar(&o.history, "history", 1_000_000, "finished jobs of adversity")
	flags.IntVar(&o.queues, "queues", 1000, "queues of adversity")
	flags.DurationVar(&o.held, "held", time.Minute, "how long adversity holds a snapshot open")
	flags.IntVar(&o.memoryJobs, "memory-jobs", 1_000_000, "jobs of memory")
	flags.IntVar(&o.idleQueues, "idle-queues", 50, "queues of idle")
	flags.DurationVar(&o.idle, "idle", 30*time.Second, "how long idle watches")
	flags.IntVar(&o.riverWorkers, "river-workers", 0, "River's `MaxWorkers`, in place of 100 by default and 2000 at its fastest")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.parts = strings.Split(*partList, ",")
	for _, name := range o.parts {
		if !slices.Contains(names, name) {
			return o, fmt.Errorf("-parts: %q is none of %s", name, strings.Join(names, ", "))
		}
	}
	for _, text := range strings.Split(*payloads, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return o, fmt.Errorf("-payloads: %q is not a number of bytes", text)
		}
		o.payloads = append(o.payloads, n)
	}
	var err error
	if o.contenders, err = regexp.Compile("(?i)" + *contenders); err != nil {
		return o, fmt.Errorf("-contenders: %w", err)
	}
	for name, n := range map[string]int{
		"-rounds": o.rounds, "-adverse-rounds": o.adverseRounds, "-jobs": o.jobs, "-enqueue-jobs": o.enqueueJobs, "-latency-seconds": o.latencySeconds,
		"-memory-jobs": o.memoryJobs, "-idle-queues": o.idleQueues,
	} {
		if n < 1 {
			return o, fmt.Errorf("%s is %d: it must be at least 1", name, n)
		}
	}
	return o, nil
}

// those are the contenders that were asked for and are installed. Ours always is, for
// ratios refer to it.
func (b *bench) those(all ...contender) []contender {
	var chosen []contender
	for _, c := range all {
		if c.name != ourName && !b.opts.contenders.MatchString(c.name) {
			continue
		}
		if err := b.missing(c); err != nil {
			logf("leaving out %s: %v", c.name, err)
			continue
		}
		chosen = append(chosen, c)
	}
	return chosen
}

// missing says what a contender lacks.
func (b *bench) missing(c contender) error {
	switch {
	case c.program == "gue" && b.opts.gueSchema == "":
		return errors.New("-gue-schema is not given")
	case programs[c.program] == nil:
		return b.nodeMissing()
	}
	return nil
}

func (b *bench) nodeMissing() error {
	if _, err := exec.LookPath("node"); err != nil {
		return errors.New("node is not installed")
	}
	if b.installed("pg-boss") == "" {
		return fmt.Errorf("its packages are not installed in %s", b.opts.rivals)
	}
	return nil
}

// installed is the version of an npm package, or empty.
func (b *bench) installed(name string) string {
	file, err := os.Open(filepath.Join(b.opts.rivals, "node_modules", name, "package.json"))
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	var pkg struct {
		Version string `json:"version"`
	}
	text, err := io.ReadAll(file)
	if err != nil || json.Unmarshal(text, &pkg) != nil {
		return ""
	}
	return pkg.Version
}
