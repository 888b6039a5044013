// Command image writes a container image with static binaries and little else
// as a docker-archive tar, without a container engine, a base image or a
// registry.
//
//	image -tag docker.io/jobqueue/jobqueue:dev -entrypoint /jobqueue -o out.tar jobqueue=bin/jobqueue
//
// The tar loads with "docker load", "kind load image-archive" or
// "ctr images import". The same arguments and files give the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// defaultCACertificates is where Debian, Ubuntu, Alpine and Arch keep the
// bundle of trusted authorities.
const defaultCACertificates = "/etc/ssl/certs/ca-certificates.crt"

func main() {
	if err := run(os.Args[1:], os.Stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			os.Exit(2)
		}
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

// run parses the arguments and writes the archive they ask for.
func run(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "Usage: image -tag NAME:TAG -entrypoint PATH -o FILE.tar PATH/IN/IMAGE=LOCAL/FILE...\n\n")
		flags.PrintDefaults()
	}
	var (
		tag        = flags.String("tag", "", "full `name` of the image, with registry and tag")
		entrypoint = flags.String("entrypoint", "", "`command` the container runs, its words separated by spaces")
		user       = flags.String("user", "65532", "user `id` the container runs as")
		arch       = flags.String("arch", runtime.GOARCH, "`architecture` of the binaries, as GOARCH names it")
		output     = flags.String("o", "", "`file` to write")
		caCerts    = flags.String("ca-certificates", defaultCACertificates, "`file` with the certificate authorities to trust; none are added when it does not exist, or when this is empty")
		labels     = labelFlag{}
	)
	flags.Var(labels, "label", "`key=value` to add to the image's labels; may be given several times")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *tag == "" || *entrypoint == "" || *output == "" {
		flags.Usage()
		return errors.New("-tag, -entrypoint and -o are all needed")
	}
	spec := Spec{
		Tag:        *tag,
		Entrypoint: strings.Fields(*entrypoint),
		User:       *user,
		Arch:       *arch,
		Labels:     labels,
	}
	files, err := parseFiles(flags.Args())
	if err != nil {
		return err
	}
	spec.Files = files
	if *caCerts != "" {
		// A builder without the bundle is common (a bare container); whoever
		// names another file has said that it must be there.
		if _, err := os.Stat(*caCerts); err == nil || *caCerts != defaultCACertificates {
			spec.CACertificates = *caCerts
		}
	}
	return WriteArchive(*output, spec)
}

// parseFiles turns PATH/IN/IMAGE=LOCAL/FILE arguments into files.
func parseFiles(args []string) ([]File, error) {
	if len(args) == 0 {
		return nil, errors.New("no file to put into the image: give PATH/IN/IMAGE=LOCAL/FILE at least once")
	}
	var files []File
	for _, arg := range args {
		inImage, local, found := strings.Cut(arg, "=")
		if !found || inImage == "" || local == "" {
			return nil, fmt.Errorf("argument %q is not of the form PATH/IN/IMAGE=LOCAL/FILE", arg)
		}
		files = append(files, File{Path: inImage, Source: local})
	}
	return files, nil
}

// labelFlag collects repeated -label key=value flags.
type labelFlag map[string]string

func (l labelFlag) String() string { return "" }

func (l labelFlag) Set(value string) error {
	key, text, found := strings.Cut(value, "=")
	if !found || key == "" {
		return errors.New("a label is written key=value")
	}
	l[key] = text
	return nil
}
