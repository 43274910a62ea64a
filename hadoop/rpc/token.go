package rpc

import (
	"encoding/base64"
	"errors"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/digest"
)

// Token is what a client has instead of a password: an identifier that the
// server understands and a secret that only they know, Hadoop's delegation and
// block tokens for example.
type Token struct {
	Identifier, Password []byte
}

const (
	tokenMethod    = "TOKEN"
	tokenMechanism = "DIGEST-MD5"
	tokenRealm     = "default"
)

// Tokens offers clients to authenticate by a token: SASL's DIGEST-MD5, named
// TOKEN. look tells the secret of a token and the user that it stands for; its
// error, if it is no [*exception.Error], reaches the client as InvalidToken.
func Tokens(look func(identifier []byte) (password []byte, user string, err error)) Mechanism {
	return Mechanism{
		Method: tokenMethod, Name: tokenMechanism, ServerID: tokenRealm,
		Start: func() Exchange {
			return &tokenExchange{look: look, server: digest.Server{Realm: tokenRealm, URI: "/" + tokenRealm}}
		},
	}
}

type tokenExchange struct {
	look   func([]byte) ([]byte, string, error)
	server digest.Server
	spoken bool // the challenge is made
	user   string
}

func (e *tokenExchange) Challenge() ([]byte, error) {
	e.spoken = true
	return e.server.Challenge(), nil
}

func (e *tokenExchange) Next(token []byte) (answer []byte, done bool, err error) {
	if !e.spoken && len(token) == 0 {
		// The server speaks first in this mechanism (RFC 2831, section 2.1). A client that got no challenge
		// with the offer begins with an empty token.
		answer, err = e.Challenge()
		return answer, false, err
	}
	var user string
	answer, _, err = e.server.Verify(token, func(name string) (string, error) {
		identifier, err := base64.StdEncoding.DecodeString(name)
		if err != nil {
			return "", exception.New(exception.InvalidToken, "the name of the token is not base64")
		}
		var password []byte
		if password, user, err = e.look(identifier); err != nil {
			var refused *exception.Error
			if !errors.As(err, &refused) {
				err = exception.New(exception.InvalidToken, "%v", err)
			}
			return "", err
		}
		return base64.StdEncoding.EncodeToString(password), nil
	})
	if err != nil {
		return nil, false, err
	}
	e.user = user
	return answer, true, nil
}

func (e *tokenExchange) User() string { return e.user }

// client is the client's side of DIGEST-MD5.
func (t *Token) client(protocol, serverID string) *digest.Client {
	return &digest.Client{
		User:     base64.StdEncoding.EncodeToString(t.Identifier),
		Password: base64.StdEncoding.EncodeToString(t.Password),
		URI:      protocol + "/" + serverID,
	}
}
