package cluster

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// SecretFile is the name under which a node looks for the cluster's secret in its
// data directory unless it is told another file.
const SecretFile = "cluster-secret"

// leastSecret is how many bytes of text a secret has at least.
const leastSecret = 32

// Secret is what all nodes of a cluster know and nobody else does. It never leaves a
// node: what is sent proves that it is known, or is encrypted with it. It may be used
// concurrently.
type Secret struct{ root [sha256.Size]byte }

// NewSecret makes a secret of a text that cannot be guessed: 32 bytes or more, such as
// 64 random hexadecimal digits. White space around it does not count.
func NewSecret(text []byte) (*Secret, error) {
	text = bytes.TrimSpace(text)
	if len(text) < leastSecret {
		return nil, fmt.Errorf("a cluster's secret has %d characters or more, this one %d: make one with: head -c 32 /dev/urandom | base64", leastSecret, len(text))
	}
	return &Secret{sha256.Sum256(text)}, nil
}

// LoadSecret reads the secret in a file. It refuses one that others may read, or
// that the group may write. With create it makes the file, for its owner alone, if
// there is none.
func LoadSecret(file string, create bool) (*Secret, error) {
	s, err := loadSecret(file)
	if create && errors.Is(err, fs.ErrNotExist) {
		if err = makeSecret(file); err == nil {
			s, err = loadSecret(file)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the cluster's secret: %w", err)
	}
	return s, nil
}

func loadSecret(file string) (*Secret, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o027 != 0 {
		return nil, fmt.Errorf("%s has the mode %04o, so that others can read or change it: chmod 600 it", file, mode)
	}
	text := make([]byte, 4096)
	n, err := f.Read(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	s, err := NewSecret(text[:n])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

// makeSecret makes a file that is whole from the moment it is there. Another process
// may make it at the same time: the first one's stays.
func makeSecret(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	var b [32]byte
	_, _ = rand.Read(b[:])                                           // never fails
	f, err := os.CreateTemp(filepath.Dir(file), SecretFile+".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.WriteString(hex.EncodeToString(b[:]) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), file); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Derive returns a key for a purpose: 32 bytes that tell nothing of the secret, nor of
// the key for any other purpose.
func (s *Secret) Derive(purpose string, more ...[]byte) []byte {
	return mac(s.root[:], append([][]byte{[]byte("verbena " + purpose + "\x00")}, more...)...)
}

func mac(key []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// Encrypt hides a text from all who do not know the secret.
func (s *Secret) Encrypt(text []byte) []byte { return s.aead().Seal(nil, nil, text, nil) }

// Decrypt returns what a node of the cluster has encrypted.
func (s *Secret) Decrypt(sealed []byte) ([]byte, error) {
	text, err := s.aead().Open(nil, nil, sealed, nil)
	if err != nil {
		return nil, errors.New("cluster: a message that was not encrypted with this cluster's secret")
	}
	return text, nil
}

func (s *Secret) aead() cipher.AEAD {
	block, err := aes.NewCipher(s.Derive("encryption"))
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	a, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return a
}
