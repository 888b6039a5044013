package main

import (
	"net/netip"
	"testing"
)

func TestAddressesFor(t *testing.T) {
	names := []string{"jobqueue", "b", "e2e", "a-rather-long-name-0", ""}
	networks := map[netip.Prefix]string{}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			got := addressesFor(name)
			if again := addressesFor(name); got != again {
				t.Errorf("the same name gave %v and %v", got, again)
			}
			all := got.All()
			if !netip.MustParsePrefix("10.64.0.0/10").Overlaps(all) && !netip.MustParsePrefix("10.128.0.0/10").Overlaps(all) {
				t.Errorf("%s lies outside the networks meant for clusters", all)
			}
			for what, prefix := range map[string]netip.Prefix{"pods": got.Pods, "services": got.Services} {
				if prefix != prefix.Masked() || !all.Contains(prefix.Addr()) {
					t.Errorf("%s are in %s, which is no network within %s", what, prefix, all)
				}
				if prefix.Contains(got.Node) {
					t.Errorf("the node %s lies in the network of the %s", got.Node, what)
				}
			}
			if got.Pods.Overlaps(got.Services) {
				t.Errorf("pods %s overlap services %s", got.Pods, got.Services)
			}
			if got.API != got.Services.Addr().Next() {
				t.Errorf("the API server's service is %s, want the first address of %s", got.API, got.Services)
			}
			if other, taken := networks[all]; taken {
				t.Errorf("%q and %q share %s", name, other, all)
			}
			networks[all] = name
		})
	}
}
