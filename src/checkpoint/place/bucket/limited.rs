//! HTTP client that ends an answer which is longer than what was asked for. `object_store` keeps whole
//! answers in memory, and a faulty store may send without an end.

use base::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use std::io;
use std::pin::Pin;

/// Most bytes of an answer beside the range of a file: a page of a list, an error.
pub const ANSWER: u64 = 16 << 20;

/// Makes the clients.
#[derive(Debug)]
pub struct LimitedConnector;

impl HttpConnector for LimitedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(LimitedClient(client)))
    }
}

#[derive(Debug)]
struct LimitedClient(HttpClient);

impl HttpService for LimitedClient {
    fn call<'s, 'f>(
        &'s self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'f>>
    where
        's: 'f,
        Self: 'f,
    {
        let range = request
            .headers()
            .get("range")
            .and_then(|range| range.to_str().ok());
        let limit = ANSWER + range.and_then(range_bytes).unwrap_or(0);
        Box::pin(async move {
            let response = self.0.execute(request).await?;
            Ok(response.map(|body| {
                let limited = Limited::new(body, limit as usize);
                HttpResponseBody::new(limited.map_err(move |error| ended(error, limit)))
            }))
        })
    }
}

/// Length of a range such as "bytes=0-99".
fn range_bytes(range: &str) -> Option<u64> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    last.checked_sub(first)?.checked_add(1)
}

fn ended(error: Box<dyn std::error::Error + Send + Sync>, limit: u64) -> HttpError {
    if error.is::<LengthLimitError>() {
        return HttpError::new(
            HttpErrorKind::Decode,
            io::Error::other(format!("the store's answer is longer than {}", Bytes(limit))),
        );
    }
    match error.downcast::<HttpError>() {
        Ok(error) => *error,
        Err(error) => HttpError::new_boxed(HttpErrorKind::Unknown, error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Settings, Store};
    use super::super::BucketStore;
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    /// Error of a list by a store that answers each request with these texts, one after the other
    /// without an end.
    fn listed_from(
        head: &'static str,
        texts: impl Fn(u64) -> Option<String> + Send + 'static,
    ) -> String {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = move |mut stream: TcpStream| -> io::Result<()> {
            let mut lines = BufReader::new(stream.try_clone()?).lines();
            while lines
                .next()
                .transpose()?
                .is_some_and(|line| !line.is_empty())
            {}
            stream.write_all(head.as_bytes())?;
            (0..)
                .map_while(&texts)
                .try_for_each(|text| stream.write_all(text.as_bytes()))
        };
        // It serves until the test's process ends.
        base::threads::spawn("store", move || {
            for stream in listener.incoming().flatten() {
                answer(stream).ok(); // the client closes it
            }
        })
        .unwrap();
        let settings = [
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
            ("AWS_ACCESS_KEY_ID", "key".into()),
            ("AWS_SECRET_ACCESS_KEY", "secret".into()),
            ("AWS_REGION", "us-east-1".into()),
        ];
        let settings: Settings = settings.map(|(name, value)| (name.into(), value)).into();
        BucketStore::open("bucket/a", &settings)
            .unwrap()
            .folders()
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn an_answer_without_an_end_is_an_error() {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nConnection: close\r\n\r\n\
                    <ListBucketResult>";
        let one = "<CommonPrefixes><Prefix>a/b/</Prefix></CommonPrefixes>".repeat(1000);
        let error = listed_from(head, move |_| Some(one.clone()));
        assert!(error.contains("s3://bucket/a") && error.contains("16.0 MiB"), "{error}");
    }

    #[test]
    fn a_list_of_endless_pages_is_an_error() {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nConnection: close\r\n\r\n";
        let page = "<ListBucketResult><IsTruncated>true</IsTruncated>\
                    <NextContinuationToken>x</NextContinuationToken></ListBucketResult>";
        let error = listed_from(head, |number| (number == 0).then(|| page.to_string()));
        assert!(error.contains("s3://bucket/a") && error.contains("pages"), "{error}");
    }

    #[test]
    fn ranges_are_read() {
        assert_eq!(range_bytes("bytes=10-19"), Some(10));
        assert_eq!(range_bytes("bytes=10-"), None);
    }
}
