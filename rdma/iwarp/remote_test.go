package iwarp

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// addressed is a stream that claims other addresses than its own.
type addressed struct {
	net.Conn
	local, remote net.Addr
}

func (a addressed) LocalAddr() net.Addr  { return a.local }
func (a addressed) RemoteAddr() net.Addr { return a.remote }

func tcpAddress(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }

func TestStreamsOfOtherHosts(t *testing.T) {
	for _, test := range []struct {
		local, remote string
		allow, taken  bool
	}{
		{"127.0.0.1", "127.0.0.1", false, true},
		{"::1", "::1", false, true},
		{"192.0.2.1", "192.0.2.1", false, true}, // this host by its own address
		{"192.0.2.1", "192.0.2.2", false, false},
		{"2001:db8::1", "2001:db8::2", false, false},
		{"192.0.2.1", "192.0.2.2", true, true},
	} {
		log := &bytes.Buffer{}
		d := testDevice(t, Config{AllowRemote: test.allow, Logger: slog.New(slog.NewTextHandler(log, nil))})
		here, there := net.Pipe()
		there.Close()
		_, err := d.RequestFromStream(bounded(t), addressed{here, tcpAddress(test.local), tcpAddress(test.remote)})
		if refused := errors.Is(err, rdma.ErrInvalid) && strings.Contains(err.Error(), "AllowRemote"); refused == test.taken {
			t.Errorf("%+v: %v", test, err)
		}
		if warned := strings.Contains(log.String(), "without authentication"); warned != test.allow {
			t.Errorf("%+v: the log says %q", test, log)
		}
		if d.Attributes().CrossesHosts != test.allow {
			t.Errorf("%+v: CrossesHosts is %v", test, d.Attributes().CrossesHosts)
		}
	}
}
