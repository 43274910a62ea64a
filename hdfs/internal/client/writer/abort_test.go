package writer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
)

// lending is a cluster whose pipelines lend memory for packets.
type lending struct {
	*cluster
	out atomic.Int64 // pieces of memory that have not come back
}

type lendingLine struct {
	data.Pipeline
	from *lending
}

type lent struct {
	bytes []byte
	from  *lending
}

func (l *lending) Write(ctx context.Context, req *data.WriteRequest) (data.Pipeline, error) {
	line, err := l.cluster.Write(ctx, req)
	if err != nil {
		return nil, err
	}
	return &lendingLine{line, l}, nil
}

func (l *lendingLine) Lend(size int) data.Memory {
	l.from.out.Add(1)
	return &lent{make([]byte, size), l.from}
}

func (l *lendingLine) Packet() int { return testPacket }

func (m *lent) Bytes() []byte { return m.bytes }
func (m *lent) Release()      { m.from.out.Add(-1) }

// slowReader gives its bytes when it is told to.
type slowReader chan []byte

func (r slowReader) Read(p []byte) (int, error) { return copy(p, <-r), nil }

// A stream that has ended keeps no memory of packets, though nobody closes it: not when
// nobody writes at its end, and not when somebody does, who gives it back when he leaves.
func TestAbortGivesMemoryBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, busy := range []bool{false, true} {
			from := &lending{cluster: newCluster(t, 3, false)}
			cfg := from.config()
			cfg.Path = from
			s := New(t.Context(), cfg, testFile, nil)
			if _, err := s.Write(randomBytes(testPacket)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the pipeline is there, and lends
			slow, left := make(slowReader), make(chan error, 1)
			if busy {
				go func() {
					_, err := s.ReadFrom(slow)
					left <- err
				}()
			} else if _, err := s.Write(randomBytes(1000)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if from.out.Load() == 0 {
				t.Fatal("no memory is lent: this tests nothing")
			}
			why := errors.New("enough")
			s.Abort(why)
			<-s.Done()
			if busy {
				slow <- randomBytes(1)
				if err := <-left; !errors.Is(err, why) {
					t.Error(err)
				}
			}
			if n := from.out.Load(); n != 0 {
				t.Errorf("busy %v: memory of %d packets has not come back", busy, n)
			}
			if _, err := s.Write(randomBytes(1)); !errors.Is(err, why) {
				t.Error(err)
			}
			if err := s.Close(t.Context()); !errors.Is(err, why) {
				t.Error(err)
			}
		}
	})
}
