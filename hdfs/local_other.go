//go:build !linux

package hdfs

import (
	"errors"
	"net"
)

// localSockets are none: descriptors are handed over on Linux alone.
type localSockets struct{}

func listenLocally(cfg *DataNodeConfig, _ uint16) (*localSockets, string, error) {
	if cfg.DomainSocket != "" {
		return nil, "", errors.New("a domain socket for short-circuit reads: this is offered on Linux alone")
	}
	return &localSockets{}, "", nil
}

func (*localSockets) serve(func(net.Conn)) {}

func (*localSockets) wait() {}

// Close does nothing.
func (*localSockets) Close() error { return nil }
