package blocktoken

import (
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// Kind is what Hadoop calls these tokens.
const Kind = "HDFS_BLOCK_TOKEN"

// password is what only those who have the key can know of an identifier.
func password(key, identifier []byte) []byte {
	h := hmac.New(sha1.New, key)
	h.Write(identifier)
	return h.Sum(nil)
}

// A signer signs with one key. It may be used concurrently.
type signer struct {
	key  []byte
	macs sync.Pool // of [hash.Hash], which is dear to make
}

// sign appends the password of an identifier to b.
func (s *signer) sign(b, identifier []byte) []byte {
	mac, ok := s.macs.Get().(hash.Hash)
	if !ok {
		mac = hmac.New(sha1.New, s.key)
	}
	mac.Write(identifier)
	b = mac.Sum(b)
	mac.Reset()
	s.macs.Put(mac)
	return b
}

// signed makes a token of an identifier.
func signed(id *Identifier, s *signer) *hdfspb.TokenProto {
	t := &struct {
		hdfspb.TokenProto
		kind, service string
		room          [192 + sha1.Size]byte // enough for most
	}{kind: Kind}
	b := id.Append(t.room[:0])
	n := len(b)
	b = s.sign(b, b)
	t.Identifier, t.Password, t.Kind, t.Service = b[:n:n], b[n:], &t.kind, &t.service
	return &t.TokenProto
}

// Issuer makes tokens, and the keys for it. All of them follow from one secret and
// the time, so an issuer that is made anew goes on with the same keys. It may be used
// concurrently.
type Issuer struct {
	derive   func(id int32) []byte
	interval time.Duration
	lifetime time.Duration

	mu   sync.Mutex
	keys map[int32]*signer
}

// NewIssuer makes an issuer whose keys sign for an interval each, tokens that are good
// for lifetime. Derive makes the key of a number: 32 bytes, always the same.
func NewIssuer(derive func(id int32) []byte, interval, lifetime time.Duration) (*Issuer, error) {
	if interval < time.Second || lifetime < time.Second || lifetime > 1000*interval {
		return nil, fmt.Errorf("blocktoken: keys that sign for %v and tokens that are good for %v: both must be a second or more, and a token no longer than a thousand keys", interval, lifetime)
	}
	return &Issuer{derive: derive, interval: interval, lifetime: lifetime, keys: make(map[int32]*signer)}, nil
}

// Current is the number of the key that signs at a time.
func (i *Issuer) Current(now time.Time) int32 {
	return int32(now.UnixMilli() / i.interval.Milliseconds())
}

func (i *Issuer) key(id int32) *signer {
	i.mu.Lock()
	defer i.mu.Unlock()
	k := i.keys[id]
	if k == nil {
		if len(i.keys) > 2000 {
			clear(i.keys)
		}
		k = &signer{key: i.derive(id)}
		i.keys[id] = k
	}
	return k
}

// Grant makes a token for a block up to a generation.
func (i *Issuer) Grant(now time.Time, user string, modes Mode, b *hdfspb.ExtendedBlockProto, types, storages []string) *hdfspb.TokenProto {
	current := i.Current(now)
	return signed(&Identifier{
		Expiry: now.Add(i.lifetime).UnixMilli(), KeyID: current, User: user, Pool: b.GetPoolId(), Block: b.GetBlockId(),
		Generation: b.GetGenerationStamp(), Modes: modes, StorageTypes: types, StorageIDs: storages,
	}, i.key(current))
}

// Keys are those that DataNodes need at a time: of every token that is still good, and the
// next one, so that they know it before it signs.
func (i *Issuer) Keys(now time.Time) *clusterpb.BlockKeys {
	current := i.Current(now)
	out := &clusterpb.BlockKeys{Current: &current, LifetimeMs: proto.Int64(i.lifetime.Milliseconds())}
	past := int32((i.lifetime + i.interval - 1) / i.interval)
	for id := current - past; id <= current+1; id++ {
		end := (int64(id)+1)*i.interval.Milliseconds() + i.lifetime.Milliseconds()
		out.Keys = append(out.Keys, &clusterpb.BlockKeys_Key{Id: proto.Int32(id), ExpiryMs: &end, Key: i.key(id).key})
	}
	return out
}

// Keys check tokens at a DataNode, which gets them from its NameNode. It may be used
// concurrently.
type Keys struct {
	mu       sync.RWMutex
	told     chan struct{} // closed when the NameNode has told
	known    bool
	enabled  bool
	current  int32
	lifetime time.Duration
	keys     map[int32]*clusterpb.BlockKeys_Key
}

// NewKeys returns keys of which the NameNode has yet to tell.
func NewKeys() *Keys {
	return &Keys{told: make(chan struct{}), keys: make(map[int32]*clusterpb.BlockKeys_Key)}
}

// Set takes what the NameNode tells: nil says that no tokens are needed. Keys that it
// does not name stay until they expire.
func (k *Keys) Set(now time.Time, from *clusterpb.BlockKeys) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.enabled = from != nil
	if from != nil {
		for id, key := range k.keys {
			if key.GetExpiryMs() <= now.UnixMilli() {
				delete(k.keys, id)
			}
		}
		for _, key := range from.GetKeys() {
			k.keys[key.GetId()] = key
		}
		k.current, k.lifetime = from.GetCurrent(), time.Duration(from.GetLifetimeMs())*time.Millisecond
	}
	if !k.known {
		k.known = true
		close(k.told)
	}
}

// Current is the number of the key that signs; 0 if there is none.
func (k *Keys) Current() int32 {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.current
}

// Wait returns when the NameNode has told whether tokens are needed, or ctx has ended.
func (k *Keys) Wait(ctx context.Context) error {
	select {
	case <-k.told:
		return nil
	default:
	}
	select {
	case <-k.told:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Told tells whether Wait returns at once.
func (k *Keys) Told() bool {
	select {
	case <-k.told:
		return true
	default:
		return false
	}
}

// Access is what a token is to be good for.
type Access struct {
	Block *hdfspb.ExtendedBlockProto
	// Newest is a generation that the block is to get, if that is a newer one.
	Newest uint64
	Mode   Mode
}

// InvalidToken says why a token does not give an access. Its holder asks the NameNode
// for another one.
type InvalidToken struct{ reason string }

func (e *InvalidToken) Error() string { return e.reason }

func invalid(format string, args ...any) error { return &InvalidToken{fmt.Sprintf(format, args...)} }

// ErrNotTold is returned as long as the NameNode has not told of keys.
var ErrNotTold = errors.New("the NameNode has not told yet whether tokens are needed, nor their keys")

// Check returns the user of a token that gives an access, "" if none is needed, or an
// [InvalidToken].
func (k *Keys) Check(now time.Time, token *hdfspb.TokenProto, a Access) (user string, err error) {
	k.mu.RLock()
	known, enabled := k.known, k.enabled
	k.mu.RUnlock()
	if !known {
		return "", ErrNotTold
	}
	if !enabled {
		return "", nil
	}
	if len(token.GetIdentifier()) == 0 {
		return "", invalid("a token of the NameNode is needed for block %d", a.Block.GetBlockId())
	}
	id, secret, err := k.Password(now, token.GetIdentifier())
	if err != nil {
		return "", err
	}
	if !hmac.Equal(secret, token.GetPassword()) {
		return "", invalid("the token for block %d was not made by this cluster's NameNode", a.Block.GetBlockId())
	}
	return id.User, id.gives(a)
}

// Until is when a token that Check has found good will not be any more.
func (k *Keys) Until(token *hdfspb.TokenProto) time.Time {
	id, err := Parse(token.GetIdentifier())
	if err != nil {
		return time.Time{}
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	return time.UnixMilli(min(id.Expiry, k.keys[id.KeyID].GetExpiryMs()))
}

// Password returns what an identifier says and its password, which proves a token.
func (k *Keys) Password(now time.Time, identifier []byte) (*Identifier, []byte, error) {
	id, err := Parse(identifier)
	if err != nil {
		return nil, nil, invalid("a token that can't be read: %v", err)
	}
	k.mu.RLock()
	key := k.keys[id.KeyID]
	k.mu.RUnlock()
	if key == nil || key.GetExpiryMs() <= now.UnixMilli() {
		return nil, nil, invalid("the key %d of a token for block %d is not known here, or no longer", id.KeyID, id.Block)
	}
	if id.Expiry <= now.UnixMilli() {
		return nil, nil, invalid("the token for block %d has expired", id.Block)
	}
	return id, password(key.GetKey(), identifier), nil
}

// gives compares an identifier with an access.
func (id *Identifier) gives(a Access) error {
	b := a.Block
	switch {
	case id.User == "":
		return invalid("the token for block %d is nobody's", id.Block)
	case id.Pool != b.GetPoolId() || id.Block != b.GetBlockId():
		return invalid("the token is for block %d of %s, not for block %d of %s", id.Block, id.Pool, b.GetBlockId(), b.GetPoolId())
	case id.Modes&a.Mode != a.Mode:
		return invalid("the token for block %d gives %v, not %v", id.Block, id.Modes, a.Mode)
	case b.GetGenerationStamp() == 0 || max(b.GetGenerationStamp(), a.Newest) > id.Generation:
		return invalid("the token for block %d is good up to generation %d, not for %d", id.Block, id.Generation, max(b.GetGenerationStamp(), a.Newest))
	}
	return nil
}

// Gives checks a proof of [Keys.Proof] for an access.
func (k *Keys) Gives(now time.Time, identifier, proof []byte, a Access) error {
	id, secret, err := k.Password(now, identifier)
	if err != nil {
		return err
	}
	if !hmac.Equal(proofOf(secret), proof) {
		return invalid("a token of the NameNode is needed for block %d", a.Block.GetBlockId())
	}
	return id.gives(a)
}

// Enabled tells whether tokens are needed, as far as is known.
func (k *Keys) Enabled() bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.enabled
}

// Proof is what only those can know of a token who know its password, which it does
// not tell.
func Proof(password []byte) []byte { return proofOf(password) }

func proofOf(secret []byte) []byte { return password(secret, []byte("proof")) }

// Grant makes a token by which a DataNode copies a block to others, or an empty one if
// none is needed.
func (k *Keys) Grant(now time.Time, user string, modes Mode, b *hdfspb.ExtendedBlockProto) *hdfspb.TokenProto {
	k.mu.RLock()
	defer k.mu.RUnlock()
	key := k.keys[k.current]
	if !k.enabled || key == nil {
		return None()
	}
	return signed(&Identifier{
		Expiry: now.Add(k.lifetime).UnixMilli(), KeyID: k.current, User: user, Pool: b.GetPoolId(), Block: b.GetBlockId(),
		Generation: b.GetGenerationStamp(), Modes: modes,
	}, &signer{key: key.GetKey()})
}

// None is an empty token.
func None() *hdfspb.TokenProto {
	return &hdfspb.TokenProto{Identifier: []byte{}, Password: []byte{}, Kind: proto.String(""), Service: proto.String("")}
}

// Number writes the number of a key, for its derivation.
func Number(id int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(id)) }
