package launch

import (
	"net"
	"os"
	"testing"
)

// Who meets where nobody from elsewhere comes needs no address that others reach, and process 0 does not listen there for them.
func TestOnOneHost(t *testing.T) {
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for rendezvous, want := range map[string]bool{
		"unix:/run/x": true, "unix:@x": true, "localhost:0": true, "LOCALHOST:0": true, "127.0.0.1:0": true, "127.1.2.3:0": true, "[::1]:0": true,
		"0.0.0.0:0": false, ":0": false, "[::]:0": false, own + ":0": false, own + ".example.org:0": false,
		"192.0.2.1:0": false, "name.invalid:0": false, "no port": false,
	} {
		if got := (Worker{Rendezvous: rendezvous}).OnOneHost(t.Context()); got != want {
			t.Errorf("%s: %v", rendezvous, got)
		}
	}
	for rendezvous, want := range map[string]bool{"localhost:0": true, "127.0.0.1:0": true, own + ":0": false, "name.invalid:0": false} {
		l, err := listen(t.Context(), rendezvous)
		if err != nil {
			t.Error(err)
			continue
		}
		if at := l.Addr().(*net.TCPAddr); at.IP.IsLoopback() != want {
			t.Errorf("%s: process 0 listens at %v", rendezvous, at)
		}
		_ = l.Close()
	}
}
