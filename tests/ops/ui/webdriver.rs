//! A real browser by the WebDriver protocol: Debian's chromium, driven by chromedriver.

use std::io::BufRead;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::http::{SOON, send};
use crate::prelude::*;

/// A browser with windows of its own and without a profile.
pub struct Browser {
    driver: Child,
    address: String,
    session: String,
}

impl Browser {
    /// `None` where there is no chromedriver on the PATH.
    pub fn start() -> Option<Self> {
        let mut driver =
            Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            line.split_once("successfully on port ").map(|(_, port)| port.trim_end_matches('.').to_owned())
        });
        std::thread::spawn(move || lines.for_each(drop));
        let address = format!("127.0.0.1:{}", port.expect("chromedriver says its port"));
        let mut browser = Self { driver, address, session: String::new() };
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--window-size=1440,900",
            // A name that another owner has pointed to this machine.
            "--host-resolver-rules=MAP rebound.example 127.0.0.1",
        ];
        let options = json!({"goog:chromeOptions": {"args": args}, "goog:loggingPrefs": {"browser": "ALL"}});
        let made = browser.call("POST", "/session", &json!({"capabilities": {"alwaysMatch": options}}));
        browser.session = format!("/session/{}", made["sessionId"].as_str().unwrap());
        Some(browser)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let answer = send(&self.address, &format!("{method} {path}"), &[("Content-Type", "application/json")], &body);
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.body);
        serde_json::from_str::<Value>(&answer.body).unwrap()["value"].take()
    }

    fn post(&self, command: &str, body: &Value) -> Value {
        self.call("POST", &format!("{}/{command}", self.session), body)
    }

    pub fn open(&self, url: &str) {
        self.post("url", &json!({ "url": url }));
    }

    /// The value of a function body.
    pub fn run(&self, script: &str) -> Value {
        self.post("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression is true.
    pub fn until(&self, expression: &str) {
        let begin = clock::mono();
        while self.run(&format!("return Boolean({expression})")) != json!(true) {
            if clock::mono() - begin > SOON {
                let text = self.run("return document.body.innerText");
                panic!("waited in vain for {expression}; the page says:\n{}", text.as_str().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the page shows this text.
    pub fn shows(&self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// A command of the browser's own protocol.
    pub fn devtools(&self, command: &str, params: &Value) -> Value {
        self.post("goog/cdp/execute", &json!({"cmd": command, "params": params}))
    }

    pub fn look(&self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
        let scheme = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": scheme }));
    }

    /// What is on the screen, as WebP.
    pub fn picture(&self) -> Vec<u8> {
        let shot = self.devtools("Page.captureScreenshot", &json!({"format": "webp", "quality": 60}));
        STANDARD.decode(shot["data"].as_str().unwrap()).unwrap()
    }

    /// How unlike two pictures are, 0 to 255 in the mean, when fonts and words no longer count.
    pub fn unlike(&self, one: &[u8], other: &[u8]) -> f64 {
        let grid = "const grid = async (text) => {
            const blob = new Blob([Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0))]);
            const image = await createImageBitmap(blob, { resizeWidth: 48, resizeHeight: 30, resizeQuality: 'high' });
            const canvas = new OffscreenCanvas(48, 30).getContext('2d');
            canvas.drawImage(image, 0, 0);
            return canvas.getImageData(0, 0, 48, 30).data;
        };";
        let (one, other) = (STANDARD.encode(one), STANDARD.encode(other));
        let mean = "one.reduce((sum, value, at) => sum + Math.abs(value - other[at]), 0) / one.length";
        let script = format!(
            "{grid} return (async () => {{ const [one, other] = [await grid('{one}'), await grid('{other}')]; return {mean}; }})()"
        );
        self.run(&script).as_f64().unwrap()
    }

    /// Counters of the page: `Nodes`, `JSEventListeners`, `TaskDuration` in seconds, and more.
    pub fn metric(&self, name: &str) -> f64 {
        let all = self.devtools("Performance.getMetrics", &json!({}));
        let found = all["metrics"].as_array().unwrap().iter().find(|metric| metric["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {all}"))["value"].as_f64().unwrap()
    }

    /// Presses keys: letters, or names of WebDriver's keys by their code points.
    pub fn press(&self, keys: &str) {
        let strokes = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()})));
        let actions = json!([{"type": "key", "id": "keyboard", "actions": strokes.collect::<Vec<_>>()}]);
        self.post("actions", &json!({ "actions": actions }));
    }

    /// Errors of the console since it was asked last.
    pub fn errors(&self) -> Vec<String> {
        let log = self.post("se/log", &json!({"type": "browser"}));
        let severe = log.as_array().unwrap().iter().filter(|line| line["level"] == "SEVERE");
        severe.map(|line| line["message"].as_str().unwrap().to_owned()).collect()
    }

    pub fn new_tab(&self) {
        let tab = self.post("window/new", &json!({"type": "tab"}));
        self.post("window", &json!({"handle": tab["handle"]}));
    }

    pub fn tabs(&self) -> Vec<Value> {
        self.call("GET", &format!("{}/window/handles", self.session), &Value::Null).as_array().unwrap().clone()
    }

    pub fn to_tab(&self, tab: &Value) {
        self.post("window", &json!({ "handle": tab }));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.call("DELETE", &self.session, &Value::Null);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
