package faults

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// moment is when a connection is cut.
type moment int

const (
	// inRequest: the server has seen a part of a request, and none of its commit.
	inRequest moment = iota
	// inStatement: the server has the whole request, and works on it.
	inStatement
	// afterCommit: the server has done it and answered; the client gets no answer.
	afterCommit
	moments
)

// cutter is a TCP proxy before PostgreSQL that cuts each connection after a random number
// of requests, at a random moment.
type cutter struct {
	listener net.Listener
	target   string
	cuts     [moments]atomic.Int64
	harmless atomic.Bool // cut no more

	mu     sync.Mutex
	random *rand.Rand
	open   map[net.Conn]bool
	pairs  []*pair
}

// newCutter starts a proxy to the server at target, host:port, until the test ends.
func newCutter(target string, random *rand.Rand) *cutter {
	GinkgoHelper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	c := &cutter{listener: listener, target: target, random: random, open: map[net.Conn]bool{}}
	DeferCleanup(c.close)
	go c.serve()
	return c
}

// silence makes all present connections carry nothing any more and stay open, as a firewall
// does that has forgotten them. It returns how many they are.
func (c *cutter) silence() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, p := range c.pairs {
		p.silent.Store(true)
		if c.open[p.client] {
			n++
		}
	}
	return n
}

// through is the URL of the same database through the proxy.
func (c *cutter) through(url string) string {
	return strings.Replace(url, c.target, c.listener.Addr().String(), 1)
}

func (c *cutter) serve() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return // it was closed
		}
		server, err := net.Dial("tcp", c.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		c.keep(client, server)
		p := &pair{cutter: c, client: client, server: server}
		c.mu.Lock()
		c.pairs = append(c.pairs, p)
		p.requests, p.moment = 3+c.random.IntN(25), moment(c.random.IntN(int(moments)))
		c.mu.Unlock()
		go p.toServer()
		go p.toClient()
	}
}

func (c *cutter) keep(conns ...net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		c.open[conn] = true
	}
}

func (c *cutter) drop(conns ...net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close() // the other side may have done so before
		delete(c.open, conn)
	}
}

func (c *cutter) close() {
	_ = c.listener.Close() // ends serve
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Close() // ends what copies
	}
}

// pair is a client's connection and that to the server for it.
type pair struct {
	cutter         *cutter
	client, server net.Conn
	requests       int // what is sent in one go counts as one, which holds for pgx
	moment         moment
	withhold       atomic.Bool // the answer
	silent         atomic.Bool // whatever comes
}

func (p *pair) cut() {
	p.cutter.cuts[p.moment].Add(1)
	p.end()
}

func (p *pair) end() { p.cutter.drop(p.client, p.server) }

func (p *pair) toServer() {
	defer p.end()
	buf := make([]byte, 1<<20)
	for n := 0; ; n++ {
		size, err := p.client.Read(buf)
		if err != nil {
			return
		}
		if p.silent.Load() {
			continue
		}
		last := n >= p.requests && !p.cutter.harmless.Load()
		if last && p.moment == inRequest {
			// All but the end, so that no statement is whole and no commit is seen.
			_, _ = p.server.Write(buf[:size/2])
			p.cut()
			return
		}
		p.withhold.Store(last && p.moment == afterCommit)
		if _, err := p.server.Write(buf[:size]); err != nil {
			return
		}
		if last && p.moment == inStatement {
			p.cut()
			return
		}
	}
}

// ready is how the server's answer ends when no transaction is open.
var ready = []byte{'Z', 0, 0, 0, 5, 'I'}

func (p *pair) toClient() {
	defer p.end()
	buf := make([]byte, 1<<20)
	var withheld []byte
	for {
		size, err := p.server.Read(buf)
		if err != nil {
			return
		}
		if p.silent.Load() {
			continue
		}
		if !p.withhold.Load() {
			if _, err := p.client.Write(buf[:size]); err != nil {
				return
			}
			continue
		}
		withheld = append(withheld, buf[:size]...)
		switch {
		case bytes.HasSuffix(withheld, ready):
			p.cut()
			return
		case len(withheld) > 5 && withheld[len(withheld)-6] == 'Z':
			// Inside a transaction: the commit is yet to come.
			if _, err := io.Copy(p.client, bytes.NewReader(withheld)); err != nil {
				return
			}
			withheld = nil
		}
	}
}
