import java.lang.reflect.Field;

/**
 * Starts Debian's JMeter. Its library for reading plans (XStream) came to refuse all classes that nobody named, JMeter's own
 * included, so that the packaged JMeter of 2015 reads no plan at all. This names them, and then starts JMeter as its script does.
 *
 * usage: java -cp /usr/share/jmeter/bin/ApacheJMeter.jar bench/jmeter/Run.java JMETER_ARGUMENTS...
 */
public class Run {
    private static final String HOME = "/usr/share/jmeter";
    private static final String[] ALLOWED = {"org.apache.jmeter.**", "org.apache.jorphan.**", "java.util.**", "java.lang.**"};

    public static void main(String[] arguments) throws Exception {
        System.setProperty("jmeter.home", HOME);
        // Making its class makes the loader that finds JMeter's other archives.
        Class<?> driver = Class.forName("org.apache.jmeter.NewDriver");
        Field known = driver.getDeclaredField("loader");
        known.setAccessible(true);
        ClassLoader loader = (ClassLoader) known.get(null);
        Thread.currentThread().setContextClassLoader(loader);
        Class<?> utilities = loader.loadClass("org.apache.jmeter.util.JMeterUtils");
        utilities.getMethod("loadJMeterProperties", String.class).invoke(null, HOME + "/bin/jmeter.properties");
        utilities.getMethod("setJMeterHome", String.class).invoke(null, HOME);
        Class<?> service = Class.forName("org.apache.jmeter.save.SaveService", true, loader);
        for (String name : new String[] {"JMXSAVER", "JTLSAVER"}) {
            Field field = service.getDeclaredField(name);
            field.setAccessible(true);
            Object reader = field.get(null);
            reader.getClass().getMethod("allowTypesByWildcard", String[].class).invoke(reader, (Object) ALLOWED);
        }
        driver.getMethod("main", String[].class).invoke(null, (Object) arguments);
    }
}
