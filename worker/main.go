package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Exit codes of a program built on [Main].
const (
	// ExitOK: asked to stop, or recycled, and drained.
	ExitOK = 0
	// ExitFailure: the program could not do its work; the log says why.
	ExitFailure = 1
	// ExitConfig: the configuration is wrong; trying again will not help.
	ExitConfig = 2
	// ExitStuck: a handler ignored its context; the process must be replaced.
	ExitStuck = 3
	// ExitSignal is added to the number of a second signal, which ends the process at once.
	ExitSignal = 128
)

// Main is a whole worker program: it reads the configuration from the environment
// ([ConfigFromEnv]), lets setup register handlers, serves /healthz, /readyz and
// /metrics, runs until SIGTERM or SIGINT, drains, and exits. A second signal ends
// it at once. It logs JSON to standard error, and does not return.
func Main(setup func(w *Worker) error) { os.Exit(MainCode(ConfigFromEnv, setup)) }

// MainCode is [Main] for programs with a command line of their own: the
// configuration comes from config, and the exit code is returned.
func MainCode(config func() (Config, error), setup func(w *Worker) error) int {
	log := newLogger()
	cfg, err := config()
	if err != nil {
		log.Error("the configuration cannot be used", "error", err)
		return ExitConfig
	}
	if limit := tuneMemory(); limit > 0 {
		log.Info("memory limit of the Go runtime set from the container's", "bytes", limit)
	}
	ctx, stop := signalContext(log)
	defer stop()
	if err := serve(ctx, cfg, log, setup); err != nil {
		log.Error("worker ended with an error", "error", err)
		return exitCode(err)
	}
	return ExitOK
}

func exitCode(err error) int {
	var config *ConfigError
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrStuckHandler):
		return ExitStuck
	case errors.As(err, &config):
		return ExitConfig
	}
	return ExitFailure
}

func newLogger() *slog.Logger {
	level := slog.LevelInfo
	text := os.Getenv(EnvLogLevel)
	err := level.UnmarshalText([]byte(text))
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if text != "" && err != nil {
		log.Warn("log level not understood, taking info", "variable", EnvLogLevel, "value", text, "allowed", "debug, info, warn, error")
	}
	return log
}

// signalContext is cancelled by the first SIGTERM or SIGINT; the second ends the
// process at once.
func signalContext(log *slog.Logger) (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	go func() {
		for asked := false; ; asked = true {
			select {
			case <-done:
				return
			case sig := <-signals:
				if asked {
					log.Error("second signal: ending at once; jobs held run again once the lease is over", "signal", sig.String())
					os.Exit(ExitSignal + int(sig.(syscall.Signal)))
				}
				log.Info("signal received", "signal", sig.String())
				cancel()
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

// closeSoon closes the pool, but does not wait for ever for a connection that a
// handler has not given back.
func closeSoon(pool *pgxpool.Pool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	await(ctx, pool.Close)
}

// serve runs a worker with its pool and HTTP server.
func serve(ctx context.Context, cfg Config, log *slog.Logger, setup func(w *Worker) error) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	pool, err := NewPool(ctx, cfg)
	if err != nil {
		return err
	}
	defer closeSoon(pool)
	w, err := New(pool, cfg, WithLogger(log))
	if err != nil {
		return err
	}
	if err := setup(w); err != nil {
		return fmt.Errorf("worker: set up handlers: %w", err)
	}
	listener, err := net.Listen("tcp", cfg.HTTPAddr)
	if err != nil {
		return fmt.Errorf("worker: listen on %s=%q: %w", EnvHTTPAddr, cfg.HTTPAddr, err)
	}
	server := &http.Server{
		Handler: w.Handler(), ReadHeaderTimeout: 5 * time.Second,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("HTTP server ended", "error", err)
		}
	}()
	err = w.Run(ctx)
	_ = server.Close()
	<-served
	return err
}
