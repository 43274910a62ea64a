package datanode

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// allow checks the token of an operation on a block: who has none for it is refused
// with a [blocktoken.InvalidToken].
func (dn *DataNode) allow(token *hdfspb.TokenProto, a blocktoken.Access) error {
	if err := dn.keysKnown(dn.ctx); err != nil {
		return err
	}
	_, err := dn.keys.Check(time.Now(), token, a)
	return err
}

// keysKnown waits after a start until the NameNode has told of keys: clients have
// tokens from before.
func (dn *DataNode) keysKnown(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, dn.cfg.ReadyTimeout, blocktoken.ErrNotTold)
	defer cancel()
	return dn.keys.Wait(ctx)
}

// takeKeys takes the keys that the NameNode sends; none means that it wants no tokens.
func (dn *DataNode) takeKeys(sealed []byte) error {
	switch {
	case dn.cfg.Secret == nil:
		return nil
	case sealed == nil:
		dn.keys.Set(time.Now(), nil)
		return nil
	}
	b, err := dn.cfg.Secret.Decrypt(sealed)
	if err != nil {
		return fmt.Errorf("keys of block tokens: %w", err)
	}
	keys := &clusterpb.BlockKeys{}
	if err := proto.Unmarshal(b, keys); err != nil {
		return fmt.Errorf("keys of block tokens: %w", err)
	}
	dn.keys.Set(time.Now(), keys)
	return nil
}

// refusedWrite is what the firstBadLink of a refused WRITE_BLOCK says. As in HDFS it is
// this DataNode if the token is at fault.
func (dn *DataNode) refusedWrite(err error) *string {
	link := ""
	var invalid *blocktoken.InvalidToken
	if errors.As(err, &invalid) {
		link = address(dn.cfg.Host, uint32(dn.cfg.Port))
	}
	return &link
}

// tokens has RPC's clients authenticate by their block tokens. The user that comes of
// it is the token with its proof, so that nobody gains by only saying that name.
func (dn *DataNode) tokens() rpc.Mechanism {
	return rpc.Tokens(func(identifier []byte) (password []byte, user string, err error) {
		_, password, err = dn.keys.Password(time.Now(), identifier)
		if err != nil {
			return nil, "", err
		}
		text := base64.StdEncoding.EncodeToString
		return password, text(identifier) + "." + text(blocktoken.Proof(password)), nil
	})
}

// allowCall checks that the caller of an RPC has authenticated by a token for a block.
func (dn *DataNode) allowCall(ctx context.Context, a blocktoken.Access) error {
	if err := dn.keysKnown(ctx); err != nil {
		return exception.New(exception.IO, "%v", err)
	}
	if !dn.keys.Enabled() {
		return nil
	}
	user := ""
	if c := rpc.FromContext(ctx); c != nil {
		user = c.User
	}
	first, second, _ := strings.Cut(user, ".")
	identifier, err := base64.StdEncoding.DecodeString(first)
	proof, err2 := base64.StdEncoding.DecodeString(second)
	if err != nil || err2 != nil || len(identifier) == 0 {
		return exception.New(exception.IO, "Can't continue since none or more than one BlockTokenIdentifier is found.")
	}
	if err := dn.keys.Gives(time.Now(), identifier, proof, a); err != nil {
		return exception.New(exception.InvalidToken, "%v", err)
	}
	return nil
}
