package hdfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
)

// Clients that come to a DataNode which has receives for only some of their endpoints wait
// for each other: no write and no read of theirs fails. Each has a block open all the time,
// and reads by calls and by the data transfer protocol, each over endpoints of its own.
func TestMoreEndpointsThanMemoryMakeClientsWait(t *testing.T) {
	const clients, half = 8, 40_000
	name, _, rt := onFakes(t, 1, 5<<20, 64<<20, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var open, ended sync.WaitGroup
	open.Add(clients)
	errs := make([]error, clients)
	for i := range clients {
		ended.Go(func() {
			opened := sync.OnceFunc(open.Done)
			defer opened()
			errs[i] = useCrowded(ctx, t, rt, name, fmt.Sprintf("/crowded-%d", i), randomBytes(2*half+i), func() {
				opened()
				open.Wait()
			})
		})
	}
	ended.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// useCrowded is one client, which writes a file and reads it while it is open and later. It
// calls opened when the first half has been flushed.
func useCrowded(ctx context.Context, t *testing.T, rt *verbena.Runtime, nameNode, file string, content []byte, opened func()) (err error) {
	d := NewDialer(rt, "fakeband")
	c, err := NewClient(ClientConfig{
		NameNodes: []string{nameNode}, User: superuser(t), Dialer: d, NoLocalReads: true, BlockSize: 1 << 20, Window: 64 << 10, PacketSize: 32 << 10,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(), d.Close()) }()
	w, err := c.Create(ctx, file, CreateOptions{})
	if err != nil {
		return err
	}
	half := len(content) / 2
	if _, err := w.Write(content[:half]); err != nil {
		return err
	}
	if err := w.Flush(ctx); err != nil {
		return err
	}
	opened()
	if err := readCrowded(ctx, c, file, content[:half]); err != nil {
		return err
	}
	if _, err := w.Write(content[half:]); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return readCrowded(ctx, c, file, content)
}

func readCrowded(ctx context.Context, c *Client, file string, want []byte) (err error) {
	f, err := c.Open(ctx, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	got, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	small := make([]byte, 1000)
	if _, err := f.ReadAtContext(ctx, small, 777); err != nil {
		return err
	}
	if !bytes.Equal(got, want) || !bytes.Equal(small, want[777:1777]) {
		return fmt.Errorf("%s has other bytes than those written", file)
	}
	return nil
}
