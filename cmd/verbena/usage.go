package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// teach has the errors of a wrong command line tell what is wanted. The file commands
// have Hadoop's words for theirs.
func teach(root *cobra.Command) {
	root.SetFlagErrorFunc(flagError)
	for _, c := range root.Commands() {
		if c.Name() != "fs" {
			teachArguments(c)
		}
	}
}

func teachArguments(c *cobra.Command) {
	for _, below := range c.Commands() {
		teachArguments(below)
	}
	if c.Args == nil {
		return
	}
	check := c.Args
	c.Args = func(c *cobra.Command, args []string) error {
		wrong := check(c, args)
		switch {
		case wrong == nil:
			return nil
		case c.HasAvailableSubCommands() && strings.HasPrefix(wrong.Error(), "unknown command"):
			return unknownCommand(c, args[0], wrong)
		}
		return fmt.Errorf("%d arguments: usage: %s", len(args), c.UseLine())
	}
}

// unknownCommand tells which command below c is near to a name.
func unknownCommand(c *cobra.Command, name string, err error) error {
	c.SuggestionsMinimumDistance = max(c.SuggestionsMinimumDistance, 2) // as cobra has it
	if near := c.SuggestionsFor(name); len(near) > 0 {
		return fmt.Errorf("%w: did you mean %s?", err, strings.Join(near, " or "))
	}
	return fmt.Errorf("%w: %s --help lists the commands", err, c.CommandPath())
}

// wanted is what flags take, by the name of their type.
var wanted = map[string]string{
	"int": "a whole number", "int64": "a whole number", "intSlice": "whole numbers, such as 1,2", "uint": "a whole number, 0 or more", "uint64": "a whole number, 0 or more",
	"duration": "a time with its unit, such as 300ms, 30s or 5m", "bool": "true or false",
}

// flagError says of a flag what it wants, and where its command's flags are told of.
func flagError(c *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		if errors.Is(err, strconv.ErrRange) {
			return fmt.Errorf("--%s %s: the number is out of range", invalid.GetFlag().Name, invalid.GetValue())
		}
		if want, ok := wanted[invalid.GetFlag().Value.Type()]; ok {
			return fmt.Errorf("--%s %s: want %s", invalid.GetFlag().Name, invalid.GetValue(), want)
		}
		return fmt.Errorf("--%s %s: %w", invalid.GetFlag().Name, invalid.GetValue(), errors.Unwrap(invalid))
	}
	return fmt.Errorf("%w: %s --help lists the flags", err, c.CommandPath())
}

// execute runs the command that args name.
func execute(ctx context.Context, root *cobra.Command, args []string) error {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return nil
	}
	root.DisableSuggestions = true // its lines are none of an error's
	_, _, none := root.Find(args)
	if none == nil {
		return err
	}
	var name string
	if _, scan := fmt.Sscanf(none.Error(), "unknown command %q", &name); scan == nil {
		return unknownCommand(root, name, none)
	}
	return fmt.Errorf("%w: verbena --help lists the commands", none)
}
