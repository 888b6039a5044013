// Package pgdial opens the sockets of the product's connections to PostgreSQL.
package pgdial

import (
	"net"
	"time"
)

// Dialer opens a socket within timeout, and notices within half a minute that the other
// side is gone, even if nothing is written: a listener only reads, and the system's own
// keepalive says so after minutes or hours.
func Dialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{
		Timeout:         timeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
}
