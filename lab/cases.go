package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func casesCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:  "lab",
		RunE: func(cmd *cobra.Command, args []string) error { return errors.New("soon") },
	}
}
