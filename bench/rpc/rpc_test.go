package main

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// Each system echoes, from several callers at once.
func TestSystemsEcho(t *testing.T) {
	for name, system := range systems {
		t.Run(name, func(t *testing.T) {
			address := "127.0.0.1:0"
			if system.network == "unix" {
				address = filepath.Join(t.TempDir(), "s")
			}
			l, err := net.Listen(system.network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go system.serve(l)
			c, err := system.dial(l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for _, size := range []int{0, 1, 1 << 10, 1 << 20, 4 << 20} {
				if err := c.call(payload(size))(ctx); err != nil {
					t.Errorf("%d bytes: %v", size, err)
				}
			}
		})
	}
}
