package main

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"regexp"
)

// nameExpression limits names to short DNS labels: a name becomes part of the
// node's name, of cgroup names and of socket paths, which may have 107 bytes.
var nameExpression = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,18}[a-z0-9])?$`)

// Addresses are the networks of one cluster.
type Addresses struct {
	// Node is the address of the node, of the API server and of PostgreSQL.
	Node netip.Addr
	// API is the address of the "kubernetes" service.
	API netip.Addr
	// Pods and Services are where pods and services get theirs.
	Pods, Services netip.Prefix
}

// addressesFor picks the networks of the cluster of that name. Two clusters
// cannot disturb each other even with the same ones, as each has a network
// namespace to itself; different ones keep logs and packet traces legible.
func addressesFor(name string) Addresses {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name))
	// 10.64.0.0/10 and 10.128.0.0/10: the low end of 10.0.0.0/8 is where
	// people's own networks tend to be.
	second := byte(64 + hash.Sum32()%128)
	return Addresses{
		Node:     netip.AddrFrom4([4]byte{10, second, 0, 1}),
		Pods:     netip.PrefixFrom(netip.AddrFrom4([4]byte{10, second, 16, 0}), 20),
		Services: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, second, 32, 0}), 20),
		API:      netip.AddrFrom4([4]byte{10, second, 32, 1}),
	}
}

// All is the network that the others lie in.
func (a Addresses) All() netip.Prefix {
	all, _ := a.Node.Prefix(16)
	return all
}

// validateName says what is wrong with a cluster's name.
func validateName(name string) error {
	if !nameExpression.MatchString(name) {
		return fmt.Errorf("the cluster name %q is not usable: take 1 to 20 lower-case letters, digits and dashes, starting with a letter", name)
	}
	return nil
}
