package settings

import (
	_ "embed" // variables.txt
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// variables has the environment variables of all programs, one per line, because programs
// share an environment. "make reference" writes the file.
//
//go:embed variables.txt
var variables string

const (
	prefix = "PD_"
	// testPrefix begins variables of pdmesh's own tests.
	testPrefix = "PD_TEST_"
)

// CheckVariables returns an error with a line for each variable PD_... of environ that no
// program knows. It ignores variables that Kubernetes and Docker set for a service whose name
// begins with "pd".
func CheckVariables(environ []string) error {
	var errs []error
	known := strings.Fields(variables)
	slices.Sort(environ)
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, prefix) || strings.HasPrefix(name, testPrefix) || value == "" ||
			slices.Contains(known, name) || isServiceVariable(name, value) {
			continue
		}
		hint := ""
		if best := closest(known, variableName(name)); best != "" {
			hint = "; did you mean " + best + "?"
		}
		errs = append(errs, fmt.Errorf("unknown environment variable %s%s", instance.Printable(name, 80), hint))
	}
	return errors.Join(errs...)
}

// LookupEnv is os.LookupEnv without the variables of services, which may have the name of a
// setting: Kubernetes sets PD_PORT=tcp://10.0.0.1:80 for a service "pd".
func LookupEnv(name string) (string, bool) {
	value, ok := os.LookupEnv(name)
	if isServiceVariable(name, value) {
		return "", false
	}
	return value, ok
}

var (
	// serviceVariable matches names that only service variables have, servicePort the values of the
	// others (kubernetes.io/docs/concepts/services-networking/service, "Environment variables").
	serviceVariable = regexp.MustCompile(`_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?$`)
	servicePort     = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

// isServiceVariable reports whether Kubernetes or Docker has set a variable for a service.
func isServiceVariable(name, value string) bool {
	return serviceVariable.MatchString(name) || strings.HasSuffix(name, "_PORT") && servicePort.MatchString(value)
}

// variableName returns a name in the form of a variable.
func variableName(s string) string { return strings.ReplaceAll(strings.ToUpper(s), "-", "_") }
