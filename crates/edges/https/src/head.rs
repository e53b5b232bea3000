//! Heads of requests.

/// How long the head of a request is in bytes, as clients write it (RFC 9112, sections 3 and 5).
pub fn head_len_bytes<B>(request: &http::Request<B>) -> usize {
    const BETWEEN_LEN_BYTES: usize = ": \r\n".len();
    let target = request.uri().path_and_query();
    let target = target.map_or(0, |target| target.as_str().len());
    let line = request.method().as_str().len() + target + "  HTTP/1.1\r\n\r\n".len();
    let headers = request.headers().iter();
    let headers =
        headers.map(|(name, value)| name.as_str().len() + value.len() + BETWEEN_LEN_BYTES);
    line + headers.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_as_long_as_it_is_written() {
        let request = http::Request::builder()
            .uri("/a?b=c")
            .header("host", "x")
            .header("x", "yz")
            .body(())
            .unwrap();
        let written = "GET /a?b=c HTTP/1.1\r\nhost: x\r\nx: yz\r\n\r\n";
        assert_eq!(head_len_bytes(&request), written.len());
    }
}
