module github.com/verbena-data/verbena/bench

go 1.26.0

require (
	github.com/spf13/cobra v1.10.2
	github.com/verbena-data/verbena v0.0.0
	golang.org/x/sys v0.49.0
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
)

replace github.com/verbena-data/verbena => ../
