package launch

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strings"
)

// OnOneHost tells whether the processes are all on this host: they meet at a socket of the file system, or at a name or an address
// that stands for this host wherever it is used. The name that this host gives itself is not such a one: here it may stand for a
// loopback address, as on Debian, and elsewhere for another one.
func (w Worker) OnOneHost(ctx context.Context) bool {
	kind, place := network(w.Rendezvous)
	if kind == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(place)
	return err == nil && isLoopback(ctx, host)
}

// isLoopback tells whether a name or an address stands for loopback addresses alone, on every host.
func isLoopback(ctx context.Context, host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsLoopback()
	}
	if host == "" || isOwn(host) {
		return false
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for _, ip := range addresses {
		if !ip.IsLoopback() {
			return false
		}
	}
	return err == nil && len(addresses) > 0
}

// isOwn tells whether this host calls itself so, with or without its domain.
func isOwn(host string) bool {
	own, err := os.Hostname()
	first := func(name string) string {
		label, _, _ := strings.Cut(name, ".")
		return label
	}
	return err == nil && strings.EqualFold(first(host), first(own)) && !strings.EqualFold(host, "localhost")
}
