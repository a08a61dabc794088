// Package server is sagad's API: the Connect, gRPC and gRPC-Web handlers of the three services on one port, with what
// surrounds them: limits, errors, forwarding to a saga's owner, health, reflection and metrics.
//
// Reads are answered by any node from the store. What changes a saga goes to the saga's owner: a node that isn't it
// forwards the call, once.
package server
