package hello

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What other protocols on such ports begin with.
var legacies = map[string]string{
	"Hadoop RPC":         "hrpc\x09\x00\x00",
	"Hadoop data":        "\x00\x1c\x51",
	"HBase":              "HBas\x00\x50",
	"HTTP GET":           "GET / HTTP/1.1\r\n\r\n",
	"HTTP POST":          "POST /",
	"HTTP PUT":           "PUT /",
	"HTTP OPTIONS":       "OPTIONS *",
	"HTTP/2":             "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"TLS":                "\x16\x03\x01\x02\x00",
	"SSH":                "SSH-2.0-x\r\n",
	"BSON":               "\x89\x00\x00\x00\x01\x00\x00\x00",
	"BSON, first bytes":  "\x89\x56\x02\x00\xdd\x07",
	"BSON, greatest":     "\x00\x6c\xdc\x02",
	"one byte":           "x",
	"magic's first byte": "\x89x",
	"magic's first four": "\x89VRB\x00",
	"all but the last":   "\x89VRB\r\n\x1ax",
}

func TestMagicIsNoBSONLength(t *testing.T) {
	n := int64(Magic[0]) | int64(Magic[1])<<8 | int64(Magic[2])<<16 | int64(Magic[3])<<24
	if n <= 48_000_000 {
		t.Errorf("%d may be the length of a message", n)
	}
}

// sniff is Sniff within a time.
func sniff(conn net.Conn, limit time.Duration) (net.Conn, bool, error) {
	conn.SetReadDeadline(time.Now().Add(limit))
	defer conn.SetReadDeadline(time.Time{})
	return Sniff(conn)
}

// tcpPair connects two sockets.
func tcpPair(t *testing.T) (near, far net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	near, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err = ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

func pipePair(t *testing.T) (near, far net.Conn) {
	near, far = net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

func eachPair(t *testing.T, f func(t *testing.T, near, far net.Conn)) {
	t.Run("tcp", func(t *testing.T) {
		near, far := tcpPair(t)
		f(t, near, far)
	})
	t.Run("pipe", func(t *testing.T) {
		near, far := pipePair(t)
		f(t, near, far)
	})
}

// A legacy client may wait for an answer after its first bytes, however few:
// nothing more may be waited for, and not one of them be lost.
func TestLegacyClients(t *testing.T) {
	for name, first := range legacies {
		for _, bytewise := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				eachPair(t, func(t *testing.T, near, far net.Conn) {
					const answer, more = "who is there", "and then some"
					go func() {
						if bytewise {
							for i := range first {
								io.WriteString(near, first[i:i+1])
							}
						} else {
							io.WriteString(near, first)
						}
						io.ReadFull(near, make([]byte, len(answer)))
						io.WriteString(near, more)
						near.Close()
					}()
					c, isHello, err := sniff(far, time.Minute)
					if err != nil || isHello {
						t.Fatal(isHello, err)
					}
					got := make([]byte, len(first))
					if _, err := io.ReadFull(c, got); err != nil || string(got) != first {
						t.Fatalf("got %q, %v", got, err)
					}
					if _, err := io.WriteString(c, answer); err != nil {
						t.Fatal(err)
					}
					rest, err := io.ReadAll(c)
					if err != nil || string(rest) != more {
						t.Fatalf("got %q, %v", rest, err)
					}
				})
			})
		}
	}
}

func TestHellos(t *testing.T) {
	h := hellos["hello-v1-full"]
	b, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	eachPair(t, func(t *testing.T, near, far net.Conn) {
		go func() {
			for i := range b {
				near.Write(b[i : i+1])
			}
			near.Close()
		}()
		c, isHello, err := sniff(far, time.Minute)
		if err != nil || !isHello || c != far {
			t.Fatal(c, isHello, err)
		}
		if _, err := ReadHello(c, len(Magic)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSilence(t *testing.T) {
	for _, first := range []string{"", "\x89VRB"} {
		eachPair(t, func(t *testing.T, near, far net.Conn) {
			go io.WriteString(near, first)
			want, limit := ErrSilent, 20*time.Millisecond
			if first != "" {
				want, limit = ErrCut, 2*time.Second // the bytes must have come by then
			}
			if _, _, err := sniff(far, limit); !errors.Is(err, want) || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%q and silence: %v", first, err)
			}
		})
	}
	eachPair(t, func(t *testing.T, near, far net.Conn) {
		near.Close()
		if _, _, err := sniff(far, time.Minute); !errors.Is(err, ErrSilent) {
			t.Errorf("closed at once: %v", err)
		}
	})
	// A few bytes of the magic and the end are a legacy client's business.
	eachPair(t, func(t *testing.T, near, far net.Conn) {
		go func() {
			io.WriteString(near, "\x89V")
			near.Close()
		}()
		c, isHello, err := sniff(far, time.Minute)
		if err != nil || isHello {
			t.Fatal(isHello, err)
		}
		if b, err := io.ReadAll(c); err != nil || string(b) != "\x89V" {
			t.Errorf("got %q, %v", b, err)
		}
	})
}

// A client whose first byte differs is handed on as the socket that it is.
func TestSocketsStaySockets(t *testing.T) {
	near, far := tcpPair(t)
	io.WriteString(near, "hrpc")
	c, _, err := sniff(far, time.Minute)
	if err != nil || c != far {
		t.Errorf("got %T, %v", c, err)
	}
}

func TestConnPassesOn(t *testing.T) {
	near, far := tcpPair(t)
	c := &Conn{Conn: far, unread: []byte("abc")}
	if _, err := c.SyscallConn(); err == nil {
		t.Error("raw access past unread bytes")
	}
	io.WriteString(near, "def")
	near.(*net.TCPConn).CloseWrite()
	var got bytes.Buffer
	if n, err := io.Copy(&got, c); n != 6 || err != nil || got.String() != "abcdef" {
		t.Errorf("copied %d, %q, %v", n, got.String(), err)
	}
	if _, err := c.SyscallConn(); err != nil {
		t.Error(err)
	}
	if err := c.CloseRead(); err != nil {
		t.Error(err)
	}
	if n, err := c.ReadFrom(bytes.NewReader([]byte("ghi"))); n != 3 || err != nil {
		t.Error(n, err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(near); string(b) != "ghi" || err != nil {
		t.Errorf("got %q, %v", b, err)
	}
	if c.NetConn() != far {
		t.Error("NetConn")
	}
	p, _ := pipePair(t)
	c = &Conn{Conn: p}
	if _, err := c.SyscallConn(); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if err := c.CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}

// Whatever comes, in whatever pieces: it is a hello exactly if it begins with
// the magic, and otherwise every byte can be read.
func FuzzSniff(f *testing.F) {
	for _, first := range legacies {
		f.Add([]byte(first), uint8(1))
	}
	f.Add(append(Magic[:], "rest"...), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) {
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		go func() {
			for rest := b; len(rest) > 0; {
				n := min(max(int(piece), 1), len(rest))
				if _, err := near.Write(rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
			near.Close()
		}()
		c, isHello, err := sniff(far, time.Minute)
		if err != nil {
			if len(b) > 0 {
				t.Fatal(err)
			}
			return
		}
		if isHello != bytes.HasPrefix(b, Magic[:]) {
			t.Fatalf("hello: %t", isHello)
		}
		got, err := io.ReadAll(c)
		if isHello {
			b = b[len(Magic):]
		}
		if err != nil || !bytes.Equal(got, b) {
			t.Fatalf("got %q, %v", got, err)
		}
	})
}
