package blocktoken

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/internal/race"
)

const (
	interval = 10 * time.Hour
	lifetime = 10 * time.Hour
)

func derive(id int32) []byte {
	b := sha256.Sum256(append([]byte("test"), Number(id)...))
	return b[:]
}

func newIssuer(t *testing.T) *Issuer {
	t.Helper()
	i, err := NewIssuer(derive, interval, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// sent is what arrives of keys that are sent.
func sent(t *testing.T, k *clusterpb.BlockKeys) *clusterpb.BlockKeys {
	t.Helper()
	b, err := proto.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	out := &clusterpb.BlockKeys{}
	if err := proto.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func block(id, generation uint64) *hdfspb.ExtendedBlockProto {
	return &hdfspb.ExtendedBlockProto{PoolId: proto.String("BP"), BlockId: &id, GenerationStamp: &generation}
}

func TestAccess(t *testing.T) {
	issuer, keys, now := newIssuer(t), NewKeys(), time.UnixMilli(1_800_000_000_000)
	if _, err := keys.Check(now, None(), Access{Block: block(1, 1), Mode: Read}); !errors.Is(err, ErrNotTold) {
		t.Errorf("before the NameNode has told: %v", err)
	}
	keys.Set(now, nil)
	if _, err := keys.Check(now, None(), Access{Block: block(1, 1), Mode: Read}); err != nil {
		t.Errorf("tokens are not needed: %v", err)
	}
	keys.Set(now, sent(t, issuer.Keys(now)))
	good := issuer.Grant(now, "ada", Read|Write, block(7, 1005), nil, nil)
	other := block(7, 1005)
	other.PoolId = proto.String("BP2")
	tampered := proto.Clone(good).(*hdfspb.TokenProto)
	tampered.Identifier[len(tampered.Identifier)-1]++
	nobody := issuer.Grant(now, "", Read, block(7, 1005), nil, nil)
	stranger, err := NewIssuer(func(id int32) []byte { return derive(id + 1) }, interval, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what  string
		token *hdfspb.TokenProto
		at    time.Time
		a     Access
		want  string // of the error, "" for none
	}{
		{"what it is for", good, now, Access{Block: block(7, 1005), Mode: Read}, ""},
		{"writing", good, now, Access{Block: block(7, 1004), Newest: 1005, Mode: Write}, ""},
		{"an older generation", good, now, Access{Block: block(7, 1000), Mode: Read}, ""},
		{"just before it expires", good, now.Add(lifetime - time.Millisecond), Access{Block: block(7, 1005), Mode: Read}, ""},
		{"when it expires", good, now.Add(lifetime), Access{Block: block(7, 1005), Mode: Read}, "expired"},
		{"long after", good, now.Add(100 * lifetime), Access{Block: block(7, 1005), Mode: Read}, "no longer"},
		{"no generation", good, now, Access{Block: block(7, 0), Mode: Read}, "generation"},
		{"a newer generation", good, now, Access{Block: block(7, 1006), Mode: Read}, "up to generation 1005"},
		{"writing a newer generation", good, now, Access{Block: block(7, 1005), Newest: 1006, Mode: Write}, "up to generation 1005"},
		{"another block", good, now, Access{Block: block(8, 1005), Mode: Read}, "not for block 8"},
		{"another pool", good, now, Access{Block: other, Mode: Read}, "of BP2"},
		{"copying", good, now, Access{Block: block(7, 1005), Mode: Copy}, "not COPY"},
		{"replacing", good, now, Access{Block: block(7, 1005), Mode: Replace}, "not REPLACE"},
		{"a changed one", tampered, now, Access{Block: block(7, 1005), Mode: Read}, "was not made by"},
		{"another cluster's", stranger.Grant(now, "ada", Read, block(7, 1005), nil, nil), now, Access{Block: block(7, 1005), Mode: Read}, "was not made by"},
		{"nobody's", nobody, now, Access{Block: block(7, 1005), Mode: Read}, "nobody"},
		{"none", None(), now, Access{Block: block(7, 1005), Mode: Read}, "is needed"},
		{"nil", nil, now, Access{Block: block(7, 1005), Mode: Read}, "is needed"},
		{"garbage", &hdfspb.TokenProto{Identifier: []byte("garbage")}, now, Access{Block: block(7, 1005), Mode: Read}, "can't be read"},
	} {
		user, err := keys.Check(c.at, c.token, c.a)
		var refused *InvalidToken
		switch {
		case c.want == "" && (err != nil || user != "ada"):
			t.Errorf("%s: %q %v", c.what, user, err)
		case c.want != "" && (!errors.As(err, &refused) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
	// What a client proves by RPC.
	_, secret, err := keys.Password(now, good.Identifier)
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Gives(now, good.Identifier, Proof(secret), Access{Block: block(7, 1005), Mode: Read}); err != nil {
		t.Error(err)
	}
	if err := keys.Gives(now, good.Identifier, secret[:10], Access{Block: block(7, 1005), Mode: Read}); err == nil {
		t.Error("another proof is taken")
	}
	// A DataNode makes tokens for others.
	if _, err := keys.Check(now, keys.Grant(now, "hdfs", Write, block(9, 3)), Access{Block: block(9, 3), Mode: Write}); err != nil {
		t.Error(err)
	}
}

// TestKeysRoll takes a token every hour for a month, while the DataNode hears of
// keys only every nine hours, and starts anew now and then, and the NameNode, too. Each
// token is good from when it is made until it expires.
// Tokens that several ask for at once are good, for a user of a long name, too.
func TestManyTokens(t *testing.T) {
	issuer, keys, now := newIssuer(t), NewKeys(), time.UnixMilli(1_800_000_000_000)
	keys.Set(now, issuer.Keys(now))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for id := range uint64(100) {
				user := strings.Repeat("ada", 1+i*50)
				token := issuer.Grant(now, user, Read, block(id, 7), nil, nil)
				if got, err := keys.Check(now, token, Access{Block: block(id, 7), Mode: Read}); err != nil || got != user {
					t.Errorf("block %d: %q, %v", id, got, err)
				}
			}
		})
	}
	wg.Wait()
	if race.Enabled {
		return // the race detector empties pools
	}
	b := block(1, 7)
	if n := testing.AllocsPerRun(100, func() { issuer.Grant(now, "ada", Read, b, nil, nil) }); n > 1 {
		t.Errorf("%v allocations for a token", n)
	}
}

func TestKeysRoll(t *testing.T) {
	issuer, keys := newIssuer(t), NewKeys()
	begin := time.UnixMilli(1_800_000_000_123)
	type made struct {
		at    time.Time
		token *hdfspb.TokenProto
	}
	var tokens []made
	used := map[int32]bool{}
	for hour := range 24 * 30 {
		now := begin.Add(time.Duration(hour) * time.Hour)
		if hour%17 == 0 {
			issuer = newIssuer(t)
		}
		if hour%50 == 0 {
			keys = NewKeys()
		}
		if hour%9 == 0 || !keys.Enabled() {
			keys.Set(now, sent(t, issuer.Keys(now)))
		}
		tokens = append(tokens, made{now, issuer.Grant(now, "ada", Read, block(7, 1), nil, nil)})
		used[issuer.Current(now)] = true
		for _, m := range tokens[max(0, len(tokens)-12):] {
			_, err := keys.Check(now, m.token, Access{Block: block(7, 1), Mode: Read})
			if good := now.Before(m.at.Add(lifetime)); (err == nil) != good {
				t.Fatalf("after %d hours a token that is %v old: %v", hour, now.Sub(m.at), err)
			}
		}
		if len(keys.keys) > 6 {
			t.Fatalf("%d keys are kept", len(keys.keys))
		}
	}
	if len(used) < 72 {
		t.Errorf("%d keys signed in 30 days", len(used))
	}
}

func TestWait(t *testing.T) {
	keys := NewKeys()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := keys.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	done := make(chan error)
	go func() { done <- keys.Wait(context.Background()) }()
	keys.Set(time.Now(), nil)
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, bad := range [][2]time.Duration{{0, lifetime}, {interval, 0}, {time.Second, time.Hour}} {
		if _, err := NewIssuer(derive, bad[0], bad[1]); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
}

func BenchmarkGrant(b *testing.B) {
	issuer, err := NewIssuer(derive, interval, lifetime)
	if err != nil {
		b.Fatal(err)
	}
	now, of := time.Now(), block(7, 1)
	b.ReportAllocs()
	for b.Loop() {
		issuer.Grant(now, "ada", Read, of, nil, nil)
	}
}
