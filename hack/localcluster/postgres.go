package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	postgresName    = "postgres"
	postgresPort    = 5432
	postgresPattern = "/usr/lib/postgresql/*/bin/postgres"
	// databaseName and databaseUser are what the server is made with; the user
	// owns the database and may make roles, as the owner of a queue's schema
	// has to.
	databaseName = "app"
	databaseUser = "jobqueue"
)

// postgresSecrets are the passwords of one server.
type postgresSecrets struct {
	Owner     string `json:"owner"`
	Superuser string `json:"superuser"`
}

func (c *Cluster) postgresDir() string         { return c.path("postgres") }
func (c *Cluster) postgresData() string        { return c.path("postgres", "data") }
func (c *Cluster) postgresSecretsFile() string { return c.path("run", "postgres-secrets.json") }

// PostgresUp makes a server when there is none and starts it. A running one is
// restarted when its number of connections has to change; 0 means that it need
// not (and 100 for a new server, PostgreSQL's own default).
func (c *Cluster) PostgresUp(ctx context.Context, maxConnections int) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if !c.sandbox().Alive() {
		return c.notRunning()
	}
	if err := ensurePackages(ctx, postgresRequirements); err != nil {
		return err
	}
	if _, err := os.Stat(c.postgresSecretsFile()); err != nil {
		if err := c.createPostgres(ctx, cmp.Or(maxConnections, 100)); err != nil {
			return errors.Join(err, os.RemoveAll(c.postgresDir()))
		}
	} else if changed, err := c.configurePostgres(maxConnections); err != nil {
		return err
	} else if changed {
		if err := c.stopPostgres(syscall.SIGINT); err != nil {
			return err
		}
	}
	return c.startPostgres(ctx)
}

// createPostgres makes the data directory with its roles and database.
func (c *Cluster) createPostgres(ctx context.Context, maxConnections int) error {
	bin, err := postgresBinaries()
	if err != nil {
		return err
	}
	credential, err := postgresUser()
	if err != nil {
		return err
	}
	progress("creating a PostgreSQL")
	// What an attempt that failed may have left.
	if err := os.RemoveAll(c.postgresDir()); err != nil {
		return err
	}
	if err := os.MkdirAll(c.postgresDir(), 0o700); err != nil {
		return err
	}
	if err := os.Chown(c.postgresDir(), int(credential.Uid), int(credential.Gid)); err != nil {
		return err
	}
	secrets := postgresSecrets{Owner: rand.Text(), Superuser: rand.Text()}
	run := func(input, program string, args ...string) error {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, program), args...)
		cmd.Dir = c.postgresDir()
		cmd.Env = componentEnvironment()
		cmd.Stdin = strings.NewReader(input)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
		output, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(output), "ERROR:") {
			return fmt.Errorf("%s failed: %w\n%s", program, cmp.Or(err, errors.New("it reported an error")), lastLines(string(output), 15))
		}
		return nil
	}
	// A new, empty data directory can be made again, so that it need not be
	// forced to the disk; the running server does force what it is given.
	password := filepath.Join(c.postgresDir(), "password")
	if err := errors.Join(os.WriteFile(password, []byte(secrets.Superuser+"\n"), 0o600), os.Chown(password, int(credential.Uid), int(credential.Gid))); err != nil {
		return err
	}
	if err := run("", "initdb", "--pgdata="+c.postgresData(), "--username=postgres", "--auth=scram-sha-256", "--pwfile="+password,
		"--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"); err != nil {
		return err
	}
	if err := os.Remove(password); err != nil {
		return err
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(c.postgresData(), "postgresql.conf"), []byte(renderPostgres(c, maxConnections)), 0o644),
		os.WriteFile(filepath.Join(c.postgresData(), "pg_hba.conf"), []byte(renderHBA(c.Addresses)), 0o644),
	); err != nil {
		return err
	}
	// A server in single-user mode needs no network, no password and no psql.
	// It takes one command per line.
	roles := fmt.Sprintf("CREATE ROLE %s LOGIN CREATEDB CREATEROLE PASSWORD '%s'\nCREATE DATABASE %s OWNER %s\n",
		databaseUser, secrets.Owner, databaseName, databaseUser)
	if err := run(roles, "postgres", "--single", "-D", c.postgresData(), "postgres"); err != nil {
		return err
	}
	// The secrets come last: with them the server counts as made.
	if err := saveJSON(c.postgresSecretsFile(), secrets); err != nil {
		return err
	}
	return os.Chmod(c.postgresSecretsFile(), 0o600)
}

// renderPostgres returns the server's configuration. Everything that decides
// about durability keeps PostgreSQL's safe defaults.
func renderPostgres(c *Cluster, maxConnections int) string {
	return fmt.Sprintf(`listen_addresses = '%s,127.0.0.1'
port = %d
max_connections = %d
unix_socket_directories = '%s'
password_encryption = 'scram-sha-256'
log_line_prefix = '%%m [%%p] %%q%%u@%%d %%a '
timezone = 'UTC'
log_timezone = 'UTC'
`, c.Addresses.Node, postgresPort, maxConnections, c.postgresDir())
}

// renderHBA returns who may connect: with a password, from the node and pods.
func renderHBA(addresses Addresses) string {
	return fmt.Sprintf("local all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\nhost all all %s scram-sha-256\n", addresses.All())
}

// configurePostgres sets the number of connections and says whether it differs
// from what was set before.
func (c *Cluster) configurePostgres(maxConnections int) (changed bool, err error) {
	if maxConnections == 0 {
		return false, nil
	}
	file := filepath.Join(c.postgresData(), "postgresql.conf")
	before, err := os.ReadFile(file)
	if err != nil {
		return false, err
	}
	after := renderPostgres(c, maxConnections)
	if string(before) == after {
		return false, nil
	}
	return true, os.WriteFile(file, []byte(after), 0o644)
}

// startPostgres starts the server and waits until it takes connections.
func (c *Cluster) startPostgres(ctx context.Context) error {
	if loadJSON[Identity](c.pidFile(postgresName)).Alive() {
		progress("PostgreSQL runs already")
		return nil
	}
	bin, err := postgresBinaries()
	if err != nil {
		return err
	}
	credential, err := postgresUser()
	if err != nil {
		return err
	}
	// A server that was killed leaves its last word in there.
	status := filepath.Join(c.postgresData(), "postmaster.pid")
	before, _ := os.Stat(status)
	begin := time.Now()
	running, err := c.start(c.sandbox(), component{
		name: postgresName, program: filepath.Join(bin, "postgres"), args: []string{"-D", c.postgresData()}, user: credential,
	})
	if err != nil {
		return err
	}
	err = c.waitFor(ctx, "a server that takes connections", time.Minute, []*process{running}, func() error {
		now, err := os.Stat(status)
		if err != nil {
			return err
		}
		if before != nil && now.ModTime().Equal(before.ModTime()) {
			return errors.New("it has not begun")
		}
		content, err := os.ReadFile(status)
		if err != nil {
			return err
		}
		if state := lastLines(string(content), 1); strings.TrimSpace(state) != "ready" {
			return fmt.Errorf("it is %q", strings.TrimSpace(state))
		}
		return nil
	})
	if err != nil {
		return errors.Join(err, running.Signal(syscall.SIGQUIT))
	}
	progress("PostgreSQL takes connections on %s:%d (%s)", c.Addresses.Node, postgresPort, time.Since(begin).Round(10*time.Millisecond))
	return nil
}

// stopPostgres ends the server: SIGINT is its fast shutdown, SIGQUIT the
// immediate one, after which it recovers as from a crash.
func (c *Cluster) stopPostgres(signal syscall.Signal) error {
	identity := loadJSON[Identity](c.pidFile(postgresName))
	if err := identity.Signal(signal); err != nil {
		return err
	}
	if !identity.Wait(30 * time.Second) {
		return fmt.Errorf("PostgreSQL (process %d) has not stopped within 30 seconds; see %s", identity.PID, c.logFile(postgresName))
	}
	return nil
}

// PostgresControl stops and starts a server that exists.
func (c *Cluster) PostgresControl(ctx context.Context, stop *syscall.Signal, start bool) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.needPostgres(); err != nil {
		return err
	}
	if stop != nil {
		if err := c.stopPostgres(*stop); err != nil {
			return err
		}
	}
	if start {
		return c.startPostgres(ctx)
	}
	return nil
}

// PostgresDown stops the server and removes its data.
func (c *Cluster) PostgresDown(ctx context.Context) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.stopPostgres(syscall.SIGINT); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(c.postgresSecretsFile()), os.RemoveAll(c.pidFile(postgresName)), os.RemoveAll(c.postgresDir()))
}

// needPostgres fails when there is no server to talk about.
func (c *Cluster) needPostgres() error {
	if !c.sandbox().Alive() {
		return c.notRunning()
	}
	if _, err := os.Stat(c.postgresSecretsFile()); err != nil {
		return fmt.Errorf("the cluster %q has no PostgreSQL; make one with: localcluster --name %s postgres up", c.Name, c.Name)
	}
	return nil
}

// PostgresURL returns how to connect, from the node and from pods.
func (c *Cluster) PostgresURL(superuser bool) (string, error) {
	if err := c.needPostgres(); err != nil {
		return "", err
	}
	secrets := loadJSON[postgresSecrets](c.postgresSecretsFile())
	who := url.UserPassword(databaseUser, secrets.Owner)
	if superuser {
		who = url.UserPassword("postgres", secrets.Superuser)
	}
	address := url.URL{Scheme: "postgres", User: who, Host: fmt.Sprintf("%s:%d", c.Addresses.Node, postgresPort), Path: databaseName}
	return address.String(), nil
}

// postgresBinaries finds the newest installed server.
func postgresBinaries() (string, error) {
	found, err := filepath.Glob(postgresPattern)
	if err != nil || len(found) == 0 {
		return "", errors.New("no PostgreSQL server is installed: there is no " + postgresPattern)
	}
	return filepath.Dir(newestPostgres(found)), nil
}

// newestPostgres picks the program with the highest version in its path.
func newestPostgres(programs []string) string {
	version := func(program string) int {
		number, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(program))))
		return number
	}
	return slices.MaxFunc(programs, func(a, b string) int { return cmp.Compare(version(a), version(b)) })
}

// postgresUser finds an unprivileged user for the server, which refuses to run
// as root.
func postgresUser() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(account.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(account.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(uidErr, gidErr)
	}
	return nil, errors.New("this machine has neither a user \"postgres\" nor \"nobody\" to run PostgreSQL as")
}
