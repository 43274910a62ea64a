package page_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/status"
	"github.com/verbena-data/verbena/status/page"
)

// A cache is something that the program has beside its runtime.
type cache map[string]string

func (c cache) Status() status.Section {
	return status.Section{Name: "cache", Title: "Cache", Facts: []status.Fact{
		{Column: status.Column{Key: "keys", Title: "Keys", Unit: "keys"}, Value: len(c)},
	}}
}

// A program mounts the page in its own server, and adds what it has to tell.
func ExampleNew() {
	rt, err := verbena.New(verbena.Config{})
	if err != nil {
		panic(err)
	}
	defer rt.Close()
	mux := http.NewServeMux()
	mux.Handle("/verbena/", http.StripPrefix("/verbena", page.New(page.Config{
		Runtime: rt,
		Sources: []status.Source{cache{"a": "1", "b": "2"}},
	})))
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/verbena/status.json", nil))
	fmt.Println(answer.Code, answer.Header().Get("Content-Type"))
	// Output: 200 application/json
}
