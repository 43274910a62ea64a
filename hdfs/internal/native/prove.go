package native

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"fmt"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
)

// ProofOf is the proof that a DataNode with the secret, under the address that clients
// know it by, has got a nonce. It names the address, so that nobody who was dialled at
// another one can have it made by a DataNode.
func ProofOf(secret *cluster.Secret, nonce [NonceLen]byte, address string) []byte {
	return secret.Derive(Service+" proof", nonce[:], []byte(address))
}

// Proves tells whether a proof is that of [ProofOf].
func Proves(secret *cluster.Secret, nonce [NonceLen]byte, address string, proof []byte) bool {
	return hmac.Equal(proof, ProofOf(secret, nonce, address))
}

// prove asks for a proof, on an endpoint on which nothing was sent yet.
func (t *Table) prove(ctx context.Context, ep *verbena.Endpoint, address string) (bool, error) {
	var nonce [NonceLen]byte
	_, _ = rand.Read(nonce[:]) // never fails
	if err := ep.Send(ctx, 0, AppendHello(nil, nonce)); err != nil {
		return false, err
	}
	m, err := ep.Receive(ctx)
	if err != nil {
		return false, err
	}
	defer m.Release()
	proof, err := ParseProof(m.Bytes())
	if err != nil {
		return false, err
	}
	if m.Tag != 0 {
		return false, fmt.Errorf("%w: a proof with tag %d", ErrMalformed, m.Tag)
	}
	return t.cfg.Prove(nonce, address, proof), nil
}
