package rpc

import (
	"bytes"
	"os"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/calls"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
	"github.com/verbena-data/verbena/internal/pages"
)

const document = "../../docs/hadoop-rpc.md"

// The examples of docs/hadoop-rpc.md are what this package sends and takes.
func TestDocumentedExamples(t *testing.T) {
	target := Target{Protocol: "org.example.Echo", Version: 1, User: "alice"}
	var id ClientID
	for i := range id {
		id[i] = byte(i)
	}
	h := wire.Request{CallID: wire.CallIDContext, ClientID: id[:], RetryCount: -1}
	m, err := encodeControl(carrier.Message{}, &h, target.context())
	if err != nil {
		t.Fatal(err)
	}
	if want := pages.Example(t, document, "The connection context"); !bytes.Equal(m.Bytes, want) {
		t.Errorf("the connection context is\n%x\nand the page has\n%x", m.Bytes, want)
	}
	req := wrapperspb.String("hi")
	m = carrier.Message{Bytes: wire.NewSession(id[:], target.Protocol, target.Version).Append(nil, 0, 0, "echo", proto.Size(req))}
	if err = appendRequest(&m, req); err != nil {
		t.Fatal(err)
	}
	if want := pages.Example(t, document, "A call"); !bytes.Equal(m.Bytes, want) {
		t.Errorf("the call is\n%x\nand the page has\n%x", m.Bytes, want)
	}
	response := wire.Response{Status: wire.StatusSuccess, ClientID: id[:]}
	if want := pages.Example(t, document, "Its answer"); !bytes.Equal(append(response.Append(nil), 4, 10, 2, 'h', 'i'), want) {
		t.Errorf("the answer is\n%x\nand the page has\n%x", response.Append(nil), want)
	}
	answer, rest, err := wire.ParseResponse(pages.Example(t, document, "Its answer"))
	if err != nil || answer.Status != wire.StatusSuccess {
		t.Fatal(answer, err)
	}
	body, rest, err := wire.Next(rest)
	var said wrapperspb.StringValue
	if err != nil || len(rest) != 0 || proto.Unmarshal(body, &said) != nil || said.Value != "hi" {
		t.Error(&said, rest, err)
	}
	page, err := os.ReadFile(document)
	if err != nil || !bytes.Contains(page, []byte("`"+Service+"`")) || calls.MethodIntroduce != 1 || calls.MethodCall != 2 {
		t.Error("the page tells of another service or other methods")
	}
}
