package hdfs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/verbena-data/verbena/hdfs/internal/shortcircuit"
	"github.com/verbena-data/verbena/internal/port"
)

// localSockets are the Unix sockets at which a DataNode hands descriptors of its blocks to
// processes of its host.
type localSockets struct {
	listeners []*net.UnixListener
	accepting sync.WaitGroup
	serving   sync.WaitGroup
	log       *slog.Logger
}

// listenLocally opens the sockets that cfg asks for, of the DataNode at the port number.
// name is the one that clients which ask the DataNode are told.
func listenLocally(cfg *DataNodeConfig, number uint16) (_ *localSockets, name string, err error) {
	s := &localSockets{log: cfg.Logger}
	if s.log == nil {
		s.log = slog.Default()
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if !cfg.NoLocalReads {
		// Nobody can guess the name, so nobody can have taken it.
		name = "@verbena-hdfs-" + rand.Text()
		if err := s.listen(name); err != nil {
			return nil, "", err
		}
	}
	if cfg.DomainSocket == "" {
		return s, name, nil
	}
	path := strings.ReplaceAll(cfg.DomainSocket, "_PORT", strconv.Itoa(int(number)))
	if err := shortcircuit.CheckPath(path, os.Geteuid()); err != nil {
		return nil, "", err
	}
	// One that a process has left behind; whoever else has one there is told by bind.
	if fi, err := os.Lstat(path); err == nil && fi.Mode().Type() == os.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, "", fmt.Errorf("domain socket: %w", err)
		}
	}
	if err := s.listen(path); err != nil {
		return nil, "", err
	}
	// For all users, as HDFS has it: tokens tell who may read what, and the directories
	// above who may come so far.
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, "", fmt.Errorf("domain socket: %w", err)
	}
	return s, name, nil
}

func (s *localSockets) listen(name string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return fmt.Errorf("domain socket: %w", err)
	}
	s.listeners = append(s.listeners, l)
	return nil
}

// serve has f serve each connection. It returns at once.
func (s *localSockets) serve(f func(net.Conn)) {
	for _, l := range s.listeners {
		s.accepting.Go(func() {
			// Until Close; nobody waits for the reason.
			_ = port.Accept(context.Background(), l, s.log, func(c net.Conn) { s.serving.Go(func() { f(c) }) })
		})
	}
}

// wait waits for the connections, which end with who serves them, after Close.
func (s *localSockets) wait() { s.serving.Wait() }

// Close ends the listening. It may be called again.
func (s *localSockets) Close() error {
	var err error
	for _, l := range s.listeners {
		if cerr := l.Close(); !errors.Is(cerr, net.ErrClosed) {
			err = errors.Join(err, cerr)
		}
	}
	s.accepting.Wait()
	return err
}
