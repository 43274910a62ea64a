package rdmanet_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/rdmanet"
)

// An HTTP server on one port for browsers and for clients that dial endpoints.
func Example() {
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		slog.Error("no runtime", "error", err)
		return
	}
	defer rt.Close()

	l, err := rdmanet.Listen(context.Background(), rt, "127.0.0.1:0", rdmanet.Config{})
	if err != nil {
		slog.Error("cannot listen", "error", err)
		return
	}
	defer l.Close()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello", r.URL.Path)
	})}
	go server.Serve(l)
	defer server.Close()

	dialer := &rdmanet.Dialer{Runtime: rt}
	defer dialer.Close()
	endpoints := &http.Transport{DialContext: dialer.DialContext}
	defer endpoints.CloseIdleConnections()
	for _, transport := range []*http.Transport{endpoints, {DisableKeepAlives: true}} {
		client := &http.Client{Transport: transport}
		response, err := client.Get("http://" + l.Addr().String() + "/verbena")
		if err != nil {
			slog.Error("no answer", "error", err)
			return
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			slog.Error("no answer", "error", err)
			return
		}
		fmt.Print(string(body))
	}
	// Output:
	// hello /verbena
	// hello /verbena
}
