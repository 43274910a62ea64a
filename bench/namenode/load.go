package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

const protocol = "org.apache.hadoop.hdfs.protocol.ClientProtocol"

// request is a message by its fields: this module can't have the service's own types.
type request []byte

func (r request) text(field protowire.Number, s string) request {
	return protowire.AppendString(protowire.AppendTag(r, field, protowire.BytesType), s)
}

func (r request) number(field protowire.Number, v uint64) request {
	return protowire.AppendVarint(protowire.AppendTag(r, field, protowire.VarintType), v)
}

func (r request) sub(field protowire.Number, m request) request {
	return protowire.AppendBytes(protowire.AppendTag(r, field, protowire.BytesType), m)
}

// mode adds an FsPermissionProto.
func (r request) mode(field protowire.Number, perm uint64) request {
	return r.sub(field, request(nil).number(1, perm))
}

// A kind is one of the calls that are measured, or that prepare what is. The numbers of
// fields are those of ClientNamenodeProtocol.proto.
type kind struct {
	method string
	counts bool
	// build makes the request of a client's nth call in a round.
	build func(client string, dir string, n int) request
}

func file(dir string, n int) string  { return fmt.Sprintf("%s/f%d", dir, n) }
func moved(dir string, n int) string { return fmt.Sprintf("%s/g%d", dir, n) }

// kinds are in an order in which each finds what the ones before have left.
var kinds = []kind{
	{"mkdirs", true, func(_, dir string, n int) request {
		return request(nil).text(1, fmt.Sprintf("%s/d%d", dir, n)).mode(2, 0o755).number(3, 1)
	}},
	{"create", true, func(client, dir string, n int) request {
		return request(nil).text(1, file(dir, n)).mode(2, 0o644).text(3, client).number(4, 1).number(5, 1).number(6, 3).number(7, 128<<20)
	}},
	{"complete", false, func(client, dir string, n int) request {
		return request(nil).text(1, file(dir, n)).text(2, client)
	}},
	{"getFileInfo", true, func(_, dir string, n int) request { return request(nil).text(1, file(dir, n)) }},
	{"getBlockLocations", true, func(_, dir string, n int) request {
		return request(nil).text(1, file(dir, n)).number(2, 0).number(3, 1<<30)
	}},
	{"rename2", true, func(_, dir string, n int) request {
		return request(nil).text(1, file(dir, n)).text(2, moved(dir, n)).number(3, 0)
	}},
	{"delete", true, func(_, dir string, n int) request { return request(nil).text(1, moved(dir, n)).number(2, 0) }},
}

// names are what the issue of each kind is called, where its method is not.
var names = map[string]string{"getBlockLocations": "open", "rename2": "rename"}

// A figure is what one kind came to in a round.
type figure struct {
	rate float64 // calls a second
	cpu  float64 // nanoseconds of the server's processor time a call
}

// drive makes calls of all kinds, one kind after the other, by clients with a connection
// each, and returns a figure of each kind that counts.
func (s *system) drive(ctx context.Context, round, clients, calls int) (map[string]figure, error) {
	out := make(map[string]figure)
	for len(s.clients) < clients {
		c, err := dial(ctx, s.address, s.user)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		s.clients = append(s.clients, c)
	}
	for _, k := range kinds {
		frames := make([][][]byte, clients)
		for c := range clients {
			client, dir := fmt.Sprintf("client-%d", c), fmt.Sprintf("/round%d/client%d", round, c)
			for n := range calls {
				frames[c] = append(frames[c], s.clients[c].prepare(k.method, k.build(client, dir, n)))
			}
		}
		var (
			wg     sync.WaitGroup
			failed = make([]error, clients)
		)
		before, err := s.process.CPU()
		if err != nil {
			return nil, err
		}
		start := time.Now()
		for c := range clients {
			wg.Go(func() {
				for _, frame := range frames[c] {
					if err := s.clients[c].do(frame); err != nil {
						failed[c] = err
						return
					}
				}
			})
		}
		wg.Wait()
		took := time.Since(start)
		after, err := s.process.CPU()
		if err := errors.Join(append(failed, err)...); err != nil {
			s.hangUp()
			return nil, fmt.Errorf("%s of %s: %w", k.method, s.name, err)
		}
		if total := float64(clients * calls); k.counts {
			out[k.method] = figure{rate: total / took.Seconds(), cpu: float64(after-before) / total}
		}
	}
	return out, nil
}
