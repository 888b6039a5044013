package worker

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestNewPool(t *testing.T) {
	base := Config{DatabaseURL: "postgres://bob:geheim@127.0.0.1:1/db", Queue: strings.Repeat("ä", 40), PoolSize: 4}
	pool, err := NewPool(context.Background(), base)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	cfg := pool.Config()
	name := cfg.ConnConfig.RuntimeParams["application_name"]
	if len(name) != 62 || !strings.HasPrefix(name, "jobqueue:worker:ää") || strings.ContainsRune(name, '\uFFFD') {
		t.Errorf("application_name is %q, %d bytes", name, len(name))
	}
	if cfg.MaxConns != 4 || cfg.ConnConfig.ConnectTimeout != connectTimeout {
		t.Errorf("max %d connections, connect timeout %s", cfg.MaxConns, cfg.ConnConfig.ConnectTimeout)
	}
	if cfg.PingTimeout != pingTimeout || cfg.BeforeClose == nil {
		t.Errorf("ping timeout %s; silent connections would use up the pool", cfg.PingTimeout)
	}

	pooler := base
	pooler.DisableListen = true
	behind, err := NewPool(context.Background(), pooler)
	if err != nil {
		t.Fatal(err)
	}
	defer behind.Close()
	if mode := behind.Config().ConnConfig.DefaultQueryExecMode; mode != pgx.QueryExecModeCacheDescribe {
		t.Errorf("behind a pooler statements run as %s", mode)
	}
}

func TestNewPoolDoesNotQuoteTheConnectionString(t *testing.T) {
	for _, url := range []string{"", "postgres://bob:geheim@[::1/db", "host=x password=geheim port=none", "postgres://bob:ge%zzheim@db/x"} {
		_, err := NewPool(context.Background(), Config{DatabaseURL: url, Queue: "q"})
		if err == nil {
			t.Errorf("%q is accepted", url)
			continue
		}
		if strings.Contains(err.Error(), "heim") || !strings.Contains(err.Error(), EnvDatabaseURL) {
			t.Errorf("error is %q", err)
		}
	}
}
